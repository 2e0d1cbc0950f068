"""Limits of the client commands."""

from typing import Final

MAX_INPUT_LINE_BYTES: Final = 1024 * 1024
"""One line of input; a message of 150 KiB has less than half of it as hexadecimal JSON."""

MAX_INPUT_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""A payload read as a whole; the largest request that a node accepts."""

READ_CHUNK_BYTES: Final = 64 * 1024
MAX_WAITING_CHUNKS: Final = 4
"""Chunks of input that are read ahead of the network."""

PREVIEW_CHARS: Final = 100
"""What is shown of a payload to people."""

PROGRESS_INTERVAL_S: Final = 1.0
PROGRESS_COLUMNS: Final = 60
"""The width of the progress, which a shorter one after it overwrites."""

STATUS_TIMEOUT_S: Final = 10.0

MAX_TOKEN_FILE_BYTES: Final = 16 * 1024
MAX_PEM_FILE_BYTES: Final = 1024 * 1024
"""A token or PEM file; anything larger is a mistake."""
