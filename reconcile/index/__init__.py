"""The IDs of a time window in memory, with fingerprints of any range of them."""

from reconcile.index.index import MAX_CHUNKS_ABOUT, MIN_CHUNK_IDS, Index
from reconcile.index.view import IndexView, MemoryView

__all__ = ["MAX_CHUNKS_ABOUT", "MIN_CHUNK_IDS", "Index", "IndexView", "MemoryView"]
