"""Attacks on a node, each beside an honest client that is served meanwhile.

``catalog`` lists the attacks, ``__main__`` runs them and measures the node, ``http2`` is a client
that breaks the protocol on purpose.
"""
