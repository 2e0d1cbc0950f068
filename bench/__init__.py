"""Benchmarks: each prints one line of JSON with a ratio against a baseline of the same run.

Run one as ``python -m bench NAME``, or all with ``make bench``. A run starts a node of its own
with an embedded Postgres in a temporary directory, and removes both.
"""
