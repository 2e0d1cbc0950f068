"""Connections to nodes, for whoever calls one: addresses, TLS, tokens, and errors as a sentence."""
