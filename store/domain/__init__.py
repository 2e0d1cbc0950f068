"""What the node does, without a clock, a socket or a database. Pure."""
