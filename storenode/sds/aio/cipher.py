"""The encryption of an application, and the bytes to which it is applied.

Over the content alone, store nodes read who depends on what, and serve by ID. Over the whole
message, nodes see bytes only: missing messages are then found by their hints, generation by
generation, and a participant without a hint finds nothing.
"""

from __future__ import annotations

from typing import Protocol


class CipherError(ValueError):
    """The bytes cannot be opened: another key, or not ours."""


class Cipher(Protocol):
    """Seals and opens bytes. ``whole`` is True to seal whole messages, False for contents."""

    @property
    def whole(self) -> bool:
        """A flag, the same for all participants: True if whole messages are sealed."""

    def seal(self, clear: bytes) -> bytes:
        """Encrypt."""

    def open(self, sealed: bytes) -> bytes:
        """Decrypt.

        Raises:
            CipherError: it cannot be opened; any other exception counts as this one.
        """


class Clear:
    """A cipher that does not encrypt."""

    whole = False

    def seal(self, clear: bytes) -> bytes:
        """Return the bytes unchanged."""
        return clear

    def open(self, sealed: bytes) -> bytes:
        """Return the bytes unchanged."""
        return sealed
