"""What the last audit of an archive found, so that the next one looks only at what has changed."""
