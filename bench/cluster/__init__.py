"""Jobs of the pipeline on a standalone cluster, by the size of what they read."""
