"""Many channels of one process over one connection to each node, with few threads and files."""
