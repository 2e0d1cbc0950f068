"""Requests built from a descriptor with usual, extreme and learned values, then broken or not.

Values of answers are kept by the name of their field, so that cursors, hashes and IDs of sessions
return to the node unchanged, changed, and in calls that they do not belong to. Requests that were
answered are made again with changes.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from chaos.fuzz.mutations import MUTATIONS, VARINTS, Mutation, flip, pick_position

_Field: TypeAlias = Any
"""A `FieldDescriptor`, which is of another class where protobuf is compiled."""

MAX_DEPTH: Final = 6
MAX_BYTES: Final = 15 * 1024 * 1024
REMEMBERED: Final = 64
"""Kept values of one name."""

_INTS: Final = (0, 1, 2, 5, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS: Final = (0.0, -0.0, 1.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
_TEXTS: Final = (
    *("", "a", "/fuzz/1/a/b", "/waku/2/rs/1/0", "/waku/2/rs/1/65536", "/", "//", "\0", "\x1b[2J"),
    *("\u202e", "é" * 40, "x" * 300, "/" * 5_000, "../../..", "'; drop table messages;", "%s%n"),
)
_SIZES: Final = (0, 1, 8, 31, 32, 33, 64, 255, 1_000)
_LARGE: Final = 200_000
_BROKEN_TEXTS: Final = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82")

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
        self._sent: deque[bytes] = deque(maxlen=REMEMBERED)
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
        sound = made.SerializeToString()
        if len(sound) > MAX_BYTES:
            sound = sound[:MAX_BYTES]
        broken = sound
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 5))):
            broken = rng.choice(_BREAKS)(broken, rng, self._sent)
        if len(sound) < _LARGE:
            self._sent.append(sound)
        return broken

    def _fill(self, made: Message, rng: random.Random, depth: int) -> None:
        density = rng.choice((0.2, 0.5, 0.9))
        for described in made.DESCRIPTOR.fields:
            if rng.random() > density:
                continue
            if described.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                self._fill_message(made, described, rng, depth)
            elif described.is_repeated:
                count = self._count(rng)
                values = [self._value(described, rng) for _ in range(min(count, 8))]
                getattr(made, described.name).extend((values * (count // 8 + 1))[:count])
            else:
                setattr(made, described.name, self._value(described, rng))

    def _fill_message(
        self, made: Message, described: _Field, rng: random.Random, depth: int
    ) -> None:
        if depth >= MAX_DEPTH:
            return
        part = getattr(made, described.name)
        if not described.is_repeated:
            part.SetInParent()
            self._fill(part, rng, depth + 1)
            return
        first = part.add()
        self._fill(first, rng, depth + 1)
        for number in range(self._count(rng) - 1):
            one = part.add()
            if number < 4:
                self._fill(one, rng, depth + 1)
            else:
                one.CopyFrom(first)

    @staticmethod
    def _count(rng: random.Random) -> int:
        # Many are rare: they cost as much as thousands of others.
        return 3_000 if rng.random() < 0.001 else rng.choice((0, 1, 1, 2, 3, 20))

    def _value(self, described: _Field, rng: random.Random) -> object:
        kind = described.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text_or_bytes(described, rng)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            value = rng.choice(_FLOATS)
            return value if kind == FieldDescriptor.CPPTYPE_DOUBLE else float(f"{value:.3g}")
        least, most = _WIDTHS[kind]
        near = self._now_ns + rng.randrange(-(10**12), 10**9)
        value = rng.choice((*_INTS, near, near, near, -1, -(2**31), -(2**63)))
        return max(least, min(most, value))

    def _text_or_bytes(self, described: _Field, rng: random.Random) -> str | bytes:
        is_text = described.type == FieldDescriptor.TYPE_STRING
        learned = self._learned.get(described.name) or self._pick_learned(rng)
        if learned and rng.random() < 0.5:
            value = rng.choice(learned)
            if isinstance(value, bytes) and rng.random() < 0.3:
                value = flip(value, rng, self._sent)
            if is_text:
                return value if isinstance(value, str) else value.hex()
            return value if isinstance(value, bytes) else value.encode()
        if is_text:
            return rng.choice(_TEXTS)
        return rng.randbytes(_LARGE if rng.random() < 0.001 else rng.choice(_SIZES))

    def _pick_learned(self, rng: random.Random) -> deque[Any] | None:
        names = list(self._learned)
        return self._learned[rng.choice(names)] if names and rng.random() < 0.2 else None


def _tag(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    """Insert a field of any number and wire type, also invalid ones."""
    number = rng.choice((0, 1, 2, 3, 7, 15, 2**29 - 1))
    tag = _varint(number << 3 | rng.randrange(8))
    value = rng.choice((b"", *VARINTS, struct.pack("<q", -1), b"\x05abcde"))
    place = pick_position(data, rng)
    return data[:place] + tag + value + data[place:]


def _text(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    """Append a field with a text that is no UTF-8."""
    value = rng.choice(_BROKEN_TEXTS) * rng.choice((1, 1, 50))
    return data + _varint(rng.randrange(1, 16) << 3 | 2) + _varint(len(value)) + value


def _nest(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    """Wrap the message in itself, often."""
    tag = _varint(rng.randrange(1, 8) << 3 | 2)
    for _ in range(rng.choice((1, 5, 120))):
        data = tag + _varint(len(data)) + data
    return data


_BREAKS: Final[tuple[Mutation, ...]] = (*MUTATIONS, _tag, _text, _nest)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
