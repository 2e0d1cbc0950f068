"""Frames between stores: bytes of a stream into what sessions and transfers take, and back.

A frame has up to 64 MiB, and a few of its bytes may become an object of fifty: a large one is cut
between its entries and decoded piece by piece, so that memory is a small multiple of its size.
Entries are taken in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from google.protobuf.message import DecodeError

from reconcile.ids import ELEMENT_BYTES
from reconcile.lattice import DIGEST_BYTES as SUM_BYTES
from store.domain.view import Times
from store.messages.fields import (
    ADMISSION_CHUNK_BYTES,
    ADMISSION_CHUNK_MESSAGES,
    DELIMITED,
    MAX_COUNTED_FIELDS,
    chunk_messages,
    end_of_value,
    read_varint,
)
from store.messages.transfer import transfer_frame
from store.sync.errors import FrameTooLargeError, MalformedFrameError
from store.sync.limits import (
    MAX_PIECE_ANSWERS,
    MAX_SEARCH_SPANS,
    MAX_UNCUT_ENTRIES,
    SESSION_ID_CHARS,
)
from store.sync.transfer.events import Frame
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1.peer_pb2 import (
    RECONCILE_FEATURE_SLICES,
    ReconcileExtension,
    ReconcileFrame,
    SumSearch,
    TransferFrame,
)

_MESSAGES: Final = TransferFrame.DESCRIPTOR.fields_by_name["messages"].number
_ANSWERS: Final = frozenset(
    TransferFrame.DESCRIPTOR.fields_by_name[name].number for name in ("stored", "refused")
)

# An entry of ``messages``, ``stored`` or ``refused`` begins with its tag, whose first byte is one
# of these, also where it is encoded longer than it need be.
_FIRST_BYTES: Final = bytes(
    tag | longer
    for field in (_MESSAGES, *_ANSWERS)
    for tag in (field << 3 | DELIMITED,)
    for longer in (0, 0x80)
)


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A ``SumSearch``: spans with their sums, and spans whose messages are listed."""

    spans: tuple[Times, ...] = ()
    sums: tuple[bytes, ...] = ()
    listed: tuple[Times, ...] = ()
    messages: bytes = b""
    more: bool = False

    def __bool__(self) -> bool:
        """Return True if something is to be compared."""
        return bool(self.spans or self.listed)

    def message(self) -> SumSearch:
        """Return it as the schema has it."""
        return SumSearch(
            spans=chain.from_iterable(self.spans),
            sums=b"".join(self.sums),
            listed=chain.from_iterable(self.listed),
            messages=self.messages,
            more=self.more,
        )

    @classmethod
    def of(cls, message: SumSearch) -> SearchStep:
        """Return what a message has.

        Raises:
            FrameTooLargeError: it names too many spans.
            MalformedFrameError: its parts do not fit each other.
        """
        spans, listed, sums = message.spans, message.listed, message.sums
        if len(spans) + len(listed) > 2 * MAX_SEARCH_SPANS:
            raise FrameTooLargeError(
                f"a frame names more than {MAX_SEARCH_SPANS:,} spans: name fewer"
            )
        fits = len(spans) % 2 == len(listed) % 2 == len(message.messages) % ELEMENT_BYTES == 0
        if not fits or len(sums) != SUM_BYTES * (len(spans) // 2):
            raise MalformedFrameError(
                "the parts of a SumSearch do not fit: encode it as the schema says"
            )
        return cls(
            tuple(zip(spans[::2], spans[1::2], strict=True)),
            tuple(sums[at : at + SUM_BYTES] for at in range(0, len(sums), SUM_BYTES)),
            tuple(zip(listed[::2], listed[1::2], strict=True)),
            message.messages,
            message.more,
        )


@dataclass(frozen=True, slots=True)
class FrameExtension:
    """A ``ReconcileExtension``; ``version`` is 0, and bytes are empty, where they are not given.

    ``slices``: the sender takes slices of the compact mode as an answer.
    """

    version: int = 0
    nonce: bytes = b""
    compact_frame: bytes = b""
    compact_ids: bytes = b""
    slices: bool = False
    compared_from_ns: int | None = None
    sum: bytes = b""
    search: SearchStep | None = None

    @property
    def size_bytes(self) -> int:
        """The size of what takes the place of a payload in the compact mode."""
        return len(self.compact_frame) + len(self.compact_ids)

    def message(self) -> ReconcileExtension:
        """Return it as the schema has it."""
        return ReconcileExtension(
            version=self.version,
            nonce=self.nonce,
            features=[RECONCILE_FEATURE_SLICES] if self.slices else [],
            compact_frame=self.compact_frame,
            compact_ids=self.compact_ids,
            compared_from=self.compared_from_ns,
            sum=self.sum,
            search=None if self.search is None else self.search.message(),
        )

    @classmethod
    def of(cls, message: ReconcileExtension) -> FrameExtension:
        """Return what a message has; features that this node does not know are passed over."""
        return cls(
            message.version,
            message.nonce,
            message.compact_frame,
            message.compact_ids,
            RECONCILE_FEATURE_SLICES in message.features,
            message.compared_from if message.HasField("compared_from") else None,
            message.sum,
            SearchStep.of(message.search) if message.HasField("search") else None,
        )


@dataclass(frozen=True, slots=True)
class Reconcile:
    """A ``ReconcileFrame``; ``count`` and the texts are claims of the peer."""

    payload: bytes
    session_id: str = ""
    refusal: str = ""
    count: int | None = None
    extension: FrameExtension | None = None

    @property
    def size_bytes(self) -> int:
        """The size of what reconciles in it."""
        return len(self.payload) + (0 if self.extension is None else self.extension.size_bytes)

    def encode(self) -> bytes:
        """Return the bytes to send."""
        return ReconcileFrame(
            ranges_data=self.payload,
            session_id=self.session_id,
            refusal=self.refusal,
            count=self.count,
            extension=None if self.extension is None else self.extension.message(),
        ).SerializeToString()

    @classmethod
    def parse(cls, frame: bytes) -> Reconcile:
        """Read a frame.

        Raises:
            MalformedFrameError: it is none.
            FrameTooLargeError: it names too many spans.
        """
        try:
            read = ReconcileFrame.FromString(frame)
        except DecodeError:
            raise MalformedFrameError(
                "the request is no storenode.v1.ReconcileFrame: encode it as the schema says"
            ) from None
        count = read.count if read.HasField("count") else None
        extension = FrameExtension.of(read.extension) if read.HasField("extension") else None
        return cls(read.ranges_data, read.session_id, read.refusal, count, extension)


def is_session_id(text: str) -> bool:
    """Return True for 128 bits in lower-case hexadecimal digits."""
    return len(text) == SESSION_ID_CHARS and set(text) <= set("0123456789abcdef")


def encode_transfer(frame: Frame) -> bytes:
    """Return the bytes of a frame to send."""
    return transfer_frame(
        frame.session_id, frame.messages, frame.stored, frame.refused, done=frame.done
    )


def pieces(frame: bytes) -> Iterator[Frame]:
    """Cut a ``TransferFrame`` into pieces that are judged at one go; at least one.

    Raises:
        MalformedFrameError: it is none.
        FrameTooLargeError: it has too many fields that the schema does not know.
    """
    if len(frame) - len(frame.translate(None, _FIRST_BYTES)) <= MAX_UNCUT_ENTRIES:
        whole = _decode(frame)
        yield from _chunks(whole, len(frame), done=whole.done)
        return
    start, done = 0, False
    for end in _cuts(frame):
        part = _decode(frame[start:end])
        done = done or part.done
        yield from _chunks(part, end - start, done=done and end == len(frame))
        start = end


def _decode(part: bytes) -> RawTransferFrame:
    try:
        return RawTransferFrame.FromString(part)
    except DecodeError:
        raise _no_frame() from None


def _no_frame() -> MalformedFrameError:
    """Return the error for bytes that are no ``TransferFrame``."""
    return MalformedFrameError("the frame is no TransferFrame: encode it as the schema says")


def _chunks(part: RawTransferFrame, size_bytes: int, *, done: bool) -> Iterator[Frame]:
    messages = part.messages
    step = chunk_messages(len(messages), size_bytes)
    chunks = max(1, -(-len(messages) // step))
    session_id, stored = part.session_id, list(part.stored)
    refused = [(each.message_hash, each.reason) for each in part.refused]
    for start in range(0, chunks * step, step):
        last = start + step >= chunks * step
        chunk = messages[start : start + step]
        yield Frame(session_id, chunk, stored, refused, done and last, size_bytes // chunks)
        session_id, stored, refused = "", [], []


def _cuts(frame: bytes) -> Iterator[int]:
    position = start = messages = answers = others = 0
    size = len(frame)
    while position < size:
        tag, position = read_varint(frame, position)
        position = end_of_value(frame, position, tag & 7)
        if not 0 <= position <= size:
            raise _no_frame()
        field = tag >> 3
        messages += field == _MESSAGES
        answers += field in _ANSWERS
        others += field != _MESSAGES and field not in _ANSWERS
        if others > MAX_COUNTED_FIELDS:
            raise FrameTooLargeError(
                f"the frame has more than {MAX_COUNTED_FIELDS:,} fields besides its entries: leave "
                "out those that the schema does not know"
            )
        full = messages >= ADMISSION_CHUNK_MESSAGES or position - start >= ADMISSION_CHUNK_BYTES
        if (full or answers >= MAX_PIECE_ANSWERS) and position < size:
            yield position
            start, messages, answers = position, 0, 0
    yield size
