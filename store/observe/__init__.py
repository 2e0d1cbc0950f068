"""Logs, metrics, traces, and the status page."""

from typing import Final

MAX_FRAME_TRACES: Final = 16
"""Traces that one frame or page continues; messages of other traces go untraced."""
