"""The encryption hook of the Reliable Channel API, as the cipher of a participant."""

from __future__ import annotations

from typing import Protocol

from storenode.sds.aio.cipher import CipherError


class Encryption(Protocol):
    """An application's encryption of segments."""

    def encrypt(self, content: bytes, /) -> bytes:
        """Encrypt; it must not fail."""

    def decrypt(self, payload: bytes, /) -> bytes:
        """Decrypt. Whatever it raises says that the bytes cannot be opened."""


class Hook:
    """A `storenode.sds.aio.cipher.Cipher`; ``whole`` as there."""

    def __init__(self, encryption: Encryption, *, whole: bool) -> None:
        self._encryption = encryption
        self.whole = whole

    def seal(self, clear: bytes) -> bytes:
        """Encrypt."""
        return self._encryption.encrypt(clear)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt.

        Raises:
            CipherError: the application could not.
        """
        try:
            return self._encryption.decrypt(sealed)
        except Exception as error:
            raise CipherError(f"it cannot be decrypted: {error}") from error
