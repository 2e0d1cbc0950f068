"""The commands that call a node: publish, query, scan, follow, get, causal-history."""
