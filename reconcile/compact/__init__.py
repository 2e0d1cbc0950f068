"""Reconciliation in two round trips and few bytes (docs/spec/compact.md).

Slices of the window by time show where the sides differ; a table of short IDs, from which the
other side takes its own, is peeled down to the differences. Any failure ends in a base session
(`reconcile.session`), never in a wrong result. The mode needs the compiled kernel
(`is_available`).
"""

from reconcile import kernel


def is_available() -> bool:
    """Return True if the compact mode can be offered and answered."""
    return kernel.compiled is not None
