"""Bounds of the frames of gossip; those of what is in them are in ``store.gossip.limits``."""

from typing import Final

MAX_GOSSIP_FRAME_BYTES: Final = 4 * 1024 * 1024
"""A ``GossipFrame``; a larger one ends the stream."""

MAX_GOSSIP_ENTRIES: Final = 8_192
"""Messages or IDs in a ``GossipFrame``."""
