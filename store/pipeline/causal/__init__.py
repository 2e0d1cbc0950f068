"""Causal gaps of a history: what refers to what is not held, and all that stands on it."""
