"""Requests of every method of a node, made from its descriptors and then broken."""
