"""Encryption is the application's: what it gives for that, and where it is applied.

Over the content alone, store nodes read who depends on what, and serve by ID. Over the whole
message, nodes see bytes only: missing messages are then found by their hints, generation by
generation, and whoever lacks a hint finds nothing.
"""

from __future__ import annotations

from typing import Protocol


class CipherError(ValueError):
    """The bytes cannot be opened: another key, or not ours."""


class Cipher(Protocol):
    """Seals and opens bytes. ``whole`` is True to seal whole messages, False for contents."""

    @property
    def whole(self) -> bool:
        """What is sealed; the same for all participants."""

    def seal(self, clear: bytes) -> bytes:
        """Encrypt."""

    def open(self, sealed: bytes) -> bytes:
        """Decrypt.

        Raises:
            CipherError: it cannot be opened.
        """


class Clear:
    """No encryption."""

    whole = False

    def seal(self, clear: bytes) -> bytes:
        """The same."""
        return clear

    def open(self, sealed: bytes) -> bytes:
        """The same."""
        return sealed
