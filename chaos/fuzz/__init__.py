"""Broken requests to every method of a node, and broken payloads to the compiled kernel."""
