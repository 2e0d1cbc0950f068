"""The schedule of calls to peers: the core and its driver."""
