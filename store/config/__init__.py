"""The configuration of a node: its dataclasses and how they are read."""
