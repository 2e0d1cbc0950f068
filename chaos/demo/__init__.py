"""The demo: three nodes and twelve participants on one machine, faults, and a verdict."""
