"""A participant that joins a channel through store nodes, heals itself, and keeps its state."""
