"""Limits of an audit."""

from typing import Final

MAX_BLOCK_ENTRIES: Final = 1_000_000
"""IDs and references to parents that are held in memory together: some 300 MB with IDs of 64
characters, and a gigabyte with IDs as long as they may be."""

EXAMINED_ENTRIES: Final = 125_000
"""IDs and references that are examined together where blocks are small: what they are sought in
then fits into a processor's cache."""

MAX_CLAIMANTS: Final = 16
"""Claimants of one ID that count in channels of several blocks; a node returns as many."""

MAX_ROUNDS: Final = 1_000
"""Times that gaps are followed from block to block; each time goes over at least one block."""
