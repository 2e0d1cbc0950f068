"""Wires the edges to the domain and owns the event loop."""
