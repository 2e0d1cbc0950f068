"""Requests built from a descriptor with usual, extreme and learned values, then broken or not.

Values of answers are kept by the name of their field, so that cursors, hashes and IDs of sessions
return to the node unchanged, changed, and in calls that they do not belong to. Requests that were
answered are made again with changes.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from storenode.message.varint import delimited, varint

_Field: TypeAlias = Any
"""A `FieldDescriptor`, which is of another class where protobuf is compiled."""

MAX_DEPTH: Final = 6
MAX_BYTES: Final = 15 * 1024 * 1024
REMEMBERED: Final = 64
"""Kept values of one name."""

_MAX_REPEATED_BYTES: Final = 200_000
_MAX_NESTED_BYTES: Final = 4_096
_LARGE: Final = 200_000
_SIZES: Final = (0, 1, 8, 31, 32, 33, 64, 255, 1_000)
_INTS: Final = (
    *(0, 1, 2, 5, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1),
    *(-1, -(2**31), -(2**63)),
)
_TEXTS: Final = (
    *("", "a", "/fuzz/1/a/b", "/waku/2/rs/1/0", "/waku/2/rs/1/65536", "/", "//", "\0", "\x1b[2J"),
    *("\u202e", "é" * 40, "x" * 300, "/" * 5_000, "../../..", "'; drop table messages;", "%s%n"),
)
_BROKEN_TEXTS: Final = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82")
_VARINTS: Final = (
    *(b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10", b"\x80\x00"),
    *(b"\xff\xff\xff\xff\x7f", b"\xff" * 8 + b"\x7f", b"\xff" * 12, b"\x80\x01", b"\x00", b"\x7f"),
)
"""Varints that are small, large, the largest, too large, or longer than needed."""

_WIDTHS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


class Requests:
    """A source of requests; ``now_ns`` is a time that messages may have, in Unix nanoseconds."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._learned: defaultdict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._sent: deque[bytes] = deque([b""], maxlen=REMEMBERED)
        self._good: defaultdict[type[Message], deque[bytes]] = defaultdict(
            lambda: deque(maxlen=8 * REMEMBERED)
        )

    def add_samples(self, kind: type[Message], frames: Sequence[bytes]) -> None:
        """Keep requests that a node answered: variants of them get past more checks."""
        self._good[kind].extend(each for each in frames if len(each) < _LARGE)

    def learn(self, answer: Message) -> None:
        """Keep the values of an answer."""
        for described, value in answer.ListFields():
            values = value if described.is_repeated else (value,)
            for each in list(values)[:4]:
                if isinstance(each, Message):
                    self.learn(each)
                elif isinstance(each, bytes | str) and each:
                    self._learned[described.name].append(each)

    def request(self, kind: type[Message], rng: random.Random) -> bytes:
        """Return the bytes of a request."""
        made = kind()
        if (known := self._good[kind]) and rng.random() < 0.5:
            with suppress(DecodeError):
                made.ParseFromString(rng.choice(known))
            if rng.random() < 0.5:
                self._fill(made, rng, MAX_DEPTH - 1)
        else:
            self._fill(made, rng, 0)
        sound = made.SerializeToString()[:MAX_BYTES]
        broken = sound
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 5))):
            broken = mutate(broken, rng, self._sent)
        if len(sound) < _LARGE:
            self._sent.append(sound)
        return broken

    def _fill(self, made: Message, rng: random.Random, depth: int) -> None:
        density = rng.choice((0.2, 0.5, 0.9))
        for described in made.DESCRIPTOR.fields:
            is_message = described.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
            if rng.random() > density or (is_message and depth >= MAX_DEPTH):
                continue
            part = getattr(made, described.name)
            if described.is_repeated:
                # Many are rare: they cost as much as thousands of others.
                count = 3_000 if rng.random() < 0.001 else rng.choice((0, 1, 1, 2, 3, 20))
                values = [self._value(described, rng, depth) for _ in range(min(count, 8))]
                part.extend((values * (count // 8 + 1))[:count])
            elif is_message:
                part.SetInParent()
                self._fill(part, rng, depth + 1)
            else:
                setattr(made, described.name, self._value(described, rng, depth))

    def _value(self, described: _Field, rng: random.Random, depth: int) -> object:
        kind = described.cpp_type
        if kind == FieldDescriptor.CPPTYPE_MESSAGE:
            made = GetMessageClass(described.message_type)()
            self._fill(made, rng, depth + 1)
            return made
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text_or_bytes(described, rng)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        least, most = _WIDTHS[kind]
        near = self._now_ns + rng.randrange(-(10**12), 10**9)
        return max(least, min(most, rng.choice((*_INTS, near, near, near))))

    def _text_or_bytes(self, described: _Field, rng: random.Random) -> str | bytes:
        is_text = described.type == FieldDescriptor.TYPE_STRING
        learned = self._learned.get(described.name) or self._pick_learned(rng)
        if learned and rng.random() < 0.5:
            value = rng.choice(learned)
            if isinstance(value, bytes) and rng.random() < 0.3:
                value = _flip(value, rng)
            if is_text:
                return value if isinstance(value, str) else value.hex()
            return value if isinstance(value, bytes) else value.encode()
        if is_text:
            return rng.choice(_TEXTS)
        return rng.randbytes(_LARGE if rng.random() < 0.001 else rng.choice(_SIZES))

    def _pick_learned(self, rng: random.Random) -> deque[Any] | None:
        names = list(self._learned)
        return self._learned[rng.choice(names)] if names and rng.random() < 0.2 else None


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Replace a part of some bytes, which may be empty or all of them; ``others`` are requests."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 0, 1, 3, 40, len(data))))
    part, other = data[start:end], rng.choice(others)
    times = min(rng.choice((2, 3, 100)), 1 + _MAX_REPEATED_BYTES // (len(part) + 1))
    number = rng.choice((0, 1, 2, 3, 7, 15, 2**29 - 1))
    put = rng.choice(
        (
            *(b"", part * times, _flip(part, rng), rng.choice(_VARINTS)),
            *(other[rng.randrange(len(other) + 1) :], rng.randbytes(rng.choice((1, 4, 200)))),
            # Fields of any number and wire type, texts that are no UTF-8, the message in itself.
            varint(number << 3 | rng.randrange(8)) + rng.choice((b"", b"\xff" * 8, *_VARINTS)),
            _field(number, rng.choice(_BROKEN_TEXTS) * rng.choice((1, 1, 50))),
            _nest(data[:_MAX_NESTED_BYTES], rng),
        )
    )
    return data[:start] + put + data[end:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _nest(data: bytes, rng: random.Random) -> bytes:
    number = rng.randrange(1, 8)
    for _ in range(rng.choice((1, 5, 120))):
        data = _field(number, data)
    return data


def _field(number: int, value: bytes) -> bytes:
    return delimited(varint(number << 3 | 2), value)
