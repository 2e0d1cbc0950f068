"""Connections to nodes: addresses, TLS, tokens, and errors as a sentence."""
