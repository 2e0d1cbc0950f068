"""Attacks on a node, and what an honest client sees of it meanwhile."""
