"""Log entries, and pages of them in compact form: about 80 bytes per entry.

A page is a run of entries in log order. Layout, all numbers big-endian: count; Lamport
timestamps; lengths of IDs (the high bit marks one of 64 lower-case hexadecimal digits, kept as
32 bytes); lengths of hints plus one (0: none); numbers of senders; the table of senders; then the
IDs and the hints, end to end.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from storenode.sds.limits import MAX_HINT_BYTES, MAX_ID_BYTES

PAGE_ENTRIES: Final = 256
"""Entries of a new page; one is split when late insertions have doubled it."""

_HEX: Final = 0x8000
_HEX_CHARS: Final = 64
_COUNT: Final = struct.Struct(">I")
_U16_BYTES: Final = 2
_U64_BYTES: Final = 8

Key = tuple[int, str]
"""Place in the log: (Lamport timestamp, message ID)."""


class PageError(ValueError):
    """The bytes are not a page."""


@dataclass(slots=True)
class LogEntry:
    """A message of the log. The hint is the latest that is known; the sender may be empty."""

    lamport: int
    message_id: str
    sender_id: str
    hint: bytes | None = None

    @property
    def key(self) -> Key:
        """The position in the log (SDS, "Resolve conflicts")."""
        return self.lamport, self.message_id


def pack_page(entries: Sequence[LogEntry]) -> bytes:
    """Encode entries, which are in log order."""
    count = len(entries)
    senders = {sender: n for n, sender in enumerate(dict.fromkeys(e.sender_id for e in entries))}
    ids = [_pack_id(entry.message_id) for entry in entries]
    hints = [entry.hint for entry in entries]
    names = [name.encode() for name in senders]
    return b"".join(
        [
            _COUNT.pack(count),
            struct.pack(f">{count}Q", *[entry.lamport for entry in entries]),
            struct.pack(f">{count}H", *[mark for mark, _ in ids]),
            struct.pack(f">{count}H", *[0 if hint is None else len(hint) + 1 for hint in hints]),
            struct.pack(f">{count}H", *[senders[entry.sender_id] for entry in entries]),
            struct.pack(f">H{len(names)}H", len(names), *[len(name) for name in names]),
            *names,
            *[packed for _, packed in ids],
            *[hint for hint in hints if hint],
        ]
    )


def unpack_page(page: bytes) -> list[LogEntry]:
    """Decode a page.

    Raises:
        PageError: the bytes are not one.
    """
    try:
        return _unpack(page)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise PageError("a page of the log is damaged") from error


def _unpack(page: bytes) -> list[LogEntry]:
    count = int(_COUNT.unpack_from(page)[0])
    if count * (_U64_BYTES + 3 * _U16_BYTES) > len(page):
        raise PageError("a page of the log is cut short")
    reader = _Reader(page, _COUNT.size)
    lamports = reader.numbers(count, "Q", _U64_BYTES)
    marks = reader.numbers(count, "H", _U16_BYTES)
    hint_marks = reader.numbers(count, "H", _U16_BYTES)
    numbers = reader.numbers(count, "H", _U16_BYTES)
    (named,) = reader.numbers(1, "H", _U16_BYTES)
    names = reader.texts(reader.numbers(named, "H", _U16_BYTES))
    ids = reader.parts([mark & ~_HEX for mark in marks])
    hints = reader.parts([max(mark - 1, 0) for mark in hint_marks])
    reader.end()
    if max(marks, default=0) & ~_HEX > MAX_ID_BYTES or max(hint_marks, default=0) > (
        MAX_HINT_BYTES + 1
    ):
        raise PageError("a page of the log has an ID or a hint that is too long")
    return [
        LogEntry(
            lamports[n],
            ids[n].hex() if marks[n] & _HEX else ids[n].decode(),
            names[numbers[n]],
            hints[n] if hint_marks[n] else None,
        )
        for n in range(count)
    ]


def _pack_id(message_id: str) -> tuple[int, bytes]:
    if len(message_id) == _HEX_CHARS:
        try:
            packed = bytes.fromhex(message_id)
        except ValueError:
            packed = b""
        if packed.hex() == message_id:
            return len(packed) | _HEX, packed
    plain = message_id.encode()
    return len(plain), plain


class _Reader:
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start

    def numbers(self, count: int, code: str, size: int) -> tuple[int, ...]:
        found = struct.unpack_from(f">{count}{code}", self._data, self._at)
        self._at += count * size
        return found

    def parts(self, lengths: Sequence[int]) -> list[bytes]:
        ends = list(accumulate(lengths, initial=self._at))
        self._at = ends[-1]
        if self._at > len(self._data):
            raise PageError("a page of the log is cut short")
        return [self._data[start:end] for start, end in pairwise(ends)]

    def texts(self, lengths: Sequence[int]) -> list[str]:
        return [part.decode() for part in self.parts(lengths)]

    def end(self) -> None:
        if self._at != len(self._data):
            raise PageError("a page of the log goes on after its end")
