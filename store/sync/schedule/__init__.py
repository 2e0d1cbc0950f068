"""When which peer is called: the core and its driver."""
