"""Limits of what a store node reads as an SDS message."""

from typing import Final

MAX_ID_BYTES: Final = 256
"""A channel ID or message ID, as UTF-8."""

MAX_HISTORY_ENTRIES: Final = 256
"""Causal history entries of one message."""

SDS_KEY_BYTES: Final = 16
"""Size of the index key of a (channel, message ID) pair."""
