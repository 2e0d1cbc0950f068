"""The commands that call a node: publish, query, scan, follow, get, causal-history."""

import os

# Before gRPC is loaded: what it would print about a failed handshake is in our own sentence.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
