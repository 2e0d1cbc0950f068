"""The rules of the node, without a clock, a socket or a database. Pure."""
