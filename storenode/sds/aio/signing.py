"""Signatures are the application's: what it signs and verifies, and how a signature travels.

The canonical bytes of a message (`storenode.sds.proofs.canonical`) cover channel, sender, clock,
causal history and content, as its ID does; so a signature cannot be moved to another message. It
follows the content inside the content field, within the encryption and covered by the ID:

    content ‖ signature ‖ its length (2 bytes, big-endian) ‖ mark (8 bytes)

Participants without a signer take it off too. Other implementations have it at the content's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from storenode.common.errors import ArgumentError
from storenode.sds.codec import Entry
from storenode.sds.events import Message, Signed
from storenode.sds.limits import MAX_SIGNATURE_BYTES
from storenode.sds.proofs import canonical

_MARK: Final = b"\x00sds-sig"
_LENGTH_BYTES: Final = 2


class Signer(Protocol):
    """Signs own messages and verifies those of others, quickly: it holds up the event loop."""

    def sign(self, canonical: bytes, /) -> bytes:
        """Sign: 1 to 8,192 bytes; none leave this message unsigned."""

    def verify(self, canonical: bytes, signature: bytes, sender_id: str, /) -> bool:
        """Return True if the signature is this sender's. An exception counts as False."""


class Signing:
    """A signer and verifier of the messages of one participant."""

    def __init__(self, signer: Signer | None, channel_id: str, sender_id: str) -> None:
        self._signer = signer
        self._channel_id = channel_id
        self._sender_id = sender_id

    def frame(self, content: bytes, lamport: int, history: Sequence[Entry]) -> bytes:
        """Return an own content with its signature.

        Raises:
            ValueError: the signature is too long.
        """
        signature = b""
        if self._signer is not None:
            message = self._channel_id, self._sender_id, lamport, history, content
            signature = self._signer.sign(canonical(*message))
        if len(signature) > MAX_SIGNATURE_BYTES:
            raise ArgumentError(
                f"a signature has {len(signature)} bytes: {MAX_SIGNATURE_BYTES} are the most"
            )
        # An empty signature marks unsigned content that ends as signatures do.
        if not signature and not content.endswith(_MARK):
            return content
        return content + signature + len(signature).to_bytes(_LENGTH_BYTES) + _MARK

    def read(self, message: Message) -> Message:
        """Return a message whose content is without its signature."""
        content, signature = unframe(message.content)
        if not signature:
            return message if content == message.content else replace(message, content=content)
        signed = Signed.UNCHECKED
        if self._signer is not None:
            sender, lamport = message.sender_id, message.lamport
            covered = canonical(self._channel_id, sender, lamport, message.history, content)
            try:
                is_valid = self._signer.verify(covered, signature, sender)
            except Exception:  # noqa: BLE001 - others choose the bytes, which must not stop the channel
                is_valid = False
            signed = Signed.VALID if is_valid else Signed.INVALID
        return replace(message, content=content, signature=signature, signed=signed)


def unframe(framed: bytes) -> tuple[bytes, bytes]:
    """Return the content, and its signature, which is empty where there is none."""
    end = len(framed) - len(_MARK) - _LENGTH_BYTES
    if end <= 0 or not framed.endswith(_MARK):
        return framed, b""
    size = int.from_bytes(framed[end : end + _LENGTH_BYTES])
    if size > MAX_SIGNATURE_BYTES or size >= end:
        return framed, b""
    return framed[: end - size], framed[end - size : end]
