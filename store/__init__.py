"""The store node."""
