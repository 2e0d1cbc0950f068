"""The whole state of a channel as bytes, and back.

Layout: magic ``SDSC``, one byte of version, the parts in the order of `snapshot`, then 16 bytes
of BLAKE2 over all that precedes them. Numbers are LEB128, texts and bytes carry their length.
How long somebody's filters lack something is not kept: that begins anew. The checksum finds
damage; a snapshot is the participant's own file, and is not meant to be taken from strangers.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from hashlib import blake2b
from typing import Final, TypeVar

from storenode.sds.bloom import RollingFilter
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Claims, Unproven
from storenode.sds.config import ChannelConfig
from storenode.sds.envelope import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.events import Counts
from storenode.sds.ids import IdSet
from storenode.sds.incoming import Waiting, Want
from storenode.sds.log import Log
from storenode.sds.outgoing import Outgoing

_T = TypeVar("_T")

MAGIC: Final = b"SDSC"
VERSION: Final = 3
"""Version 1 knows neither heads nor when the filter goes along, and none before 3 whose ID proves
anything; they are still read."""

CHECKSUM_BYTES: Final = 16
_FLOAT: Final = struct.Struct(">d")
_MAX_SHIFT: Final = 63


class SnapshotError(ValueError):
    """The bytes are not a snapshot that this channel can go on from."""


def snapshot(channel: MessageChannel) -> bytes:
    """Encode the whole state; the channel goes on unchanged."""
    write = _Writer()
    _write_identity(write, channel.config)
    _write_log(write, channel)
    write.bytes_(channel.filter.pairs())
    clock = channel.clock
    for number in (clock.value, clock.latest_ms, clock.set_back_ms):
        write.number(number)
    write.number(channel.sends)
    write.number(channel.told_ms)
    write.list_(astuple(channel.counts), write.number)
    write.list_(channel.lost, write.text)
    write.list_(channel.outgoing.by_id.values(), write.outgoing)
    write.list_(channel.incoming.waiting.values(), write.waiting)
    write.list_(channel.incoming.wants.items(), write.want)
    _write_pace(write, channel)
    _write_repair(write, channel)
    _write_telling(write, channel)
    _write_claims(write, channel)
    body = MAGIC + bytes([VERSION]) + b"".join(write.parts)
    return body + _checksum(body)


def restore(config: ChannelConfig, data: bytes) -> MessageChannel:
    """Make a channel that goes on where `snapshot` was taken; times may be in its past.

    Raises:
        SnapshotError: the bytes are damaged, of another version, or of another channel, sender
            or filter than the configuration's.
    """
    body = data[:-CHECKSUM_BYTES]
    if not data.startswith(MAGIC):
        raise SnapshotError("these bytes are no snapshot of a channel")
    if len(body) <= len(MAGIC) or _checksum(body) != data[-CHECKSUM_BYTES:]:
        raise SnapshotError("the snapshot is damaged: restore an older one, or start anew")
    version = body[len(MAGIC)]
    if not 1 <= version <= VERSION:
        raise SnapshotError(f"the snapshot has version {version}: this one reads up to {VERSION}")
    try:
        return _restore(config, _Reader(body, len(MAGIC) + 1), version)
    except SnapshotError:
        raise
    except (ValueError, IndexError, struct.error) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error


class _NoChance:
    def uniform(self, a: float, b: float) -> float:
        """Stands in where what is drawn is replaced at once."""
        return min(a, b)


def _restore(config: ChannelConfig, read: "_Reader", version: int) -> MessageChannel:
    _check_identity(read, config)
    channel = MessageChannel(config, 0, _NoChance())
    _read_log(read, channel)
    channel.filters.own = RollingFilter.from_pairs(config.filter, read.bytes_())
    clock = channel.clock
    clock.value, clock.latest_ms, clock.set_back_ms = (read.number() for _ in range(3))
    channel.sends = read.number()
    channel.told_ms = read.number()
    counts = read.list_(read.number)
    if len(counts) > len(fields(Counts)):
        raise SnapshotError("the snapshot has other counts than this version")
    channel.counts = Counts(*counts)
    channel.lost = dict.fromkeys(read.list_(read.text))
    for outgoing in read.list_(lambda: read.outgoing(config)):
        channel.outgoing.add(outgoing)
    waiting = read.list_(lambda: read.waiting(version))
    channel.incoming.restore(waiting, read.list_(read.want))
    _read_pace(read, channel)
    _read_repair(read, channel)
    if version > 1:
        _read_telling(read, channel)
    else:
        channel.showing.due = True
    if version > 2:
        _read_claims(read, channel)
    else:
        channel.claims.add_older(entry.message_id for entry in channel.log.entries())
        channel.claims.add_older(channel.incoming.ids)
    read.end()
    known = len(channel.log) + channel.log.pruned + len(channel.incoming.waiting)
    channel.filter.complete = known <= len(channel.filter)
    return channel


def _write_identity(write: "_Writer", config: ChannelConfig) -> None:
    write.text(config.channel_id)
    write.text(config.sender_id)
    write.number(config.filter.bits)
    write.number(config.filter.hashes)


def _check_identity(read: "_Reader", config: ChannelConfig) -> None:
    found = read.text(), read.text()
    if found != (config.channel_id, config.sender_id):
        raise SnapshotError(f"the snapshot is of channel {found[0]!r} and sender {found[1]!r}")
    if (read.number(), read.number()) != (config.filter.bits, config.filter.hashes):
        raise SnapshotError("the snapshot was taken with a filter of another shape")


def _write_log(write: "_Writer", channel: MessageChannel) -> None:
    packed, newest = channel.log.pages()
    write.bytes_(channel.log.met.salt)
    write.list_(packed, write.bytes_)
    write.list_(newest, write.bytes_)
    write.bytes_(channel.log.met.digests())
    write.number(channel.log.pruned)


def _read_log(read: "_Reader", channel: MessageChannel) -> None:
    channel.log = Log(read.bytes_())
    channel.claims = Claims(channel.log.met.salt)
    packed, newest = read.list_(read.bytes_), read.list_(read.bytes_)
    channel.log.restore(packed, newest, read.bytes_())
    channel.log.pruned = read.number()


def _write_pace(write: "_Writer", channel: MessageChannel) -> None:
    pace, gaps = channel.pace, channel.gaps
    write.number(pace.active_ms)
    write.number(pace.spoke_ms)
    write.list_(pace.owed.items(), write.timed)
    write.list_(() if pace.silence is None else (pace.silence,), write.float_)
    write.list_(pace.limits or (), write.float_)
    write.list_(() if gaps.looked_ms is None else (gaps.looked_ms,), write.number)
    write.list_(gaps.told.items(), write.timed)


def _read_pace(read: "_Reader", channel: MessageChannel) -> None:
    pace, gaps = channel.pace, channel.gaps
    pace.active_ms, pace.spoke_ms = read.number(), read.number()
    pace.owed = dict(read.list_(read.timed))
    silence, limits = read.list_(read.float_), read.list_(read.float_)
    pace.silence = silence[0] if silence else None
    pace.limits = (limits[0], limits[1]) if limits else None
    looked = read.list_(read.number)
    gaps.looked_ms = looked[0] if looked else None
    gaps.told = dict(read.list_(read.timed))


def _write_repair(write: "_Writer", channel: MessageChannel) -> None:
    requests, answers = channel.requests, channel.answers
    write.list_(() if requests is None else requests.due.values(), write.request)
    write.list_(() if answers is None else answers.kept.values(), write.message)
    write.list_(() if answers is None else answers.pending.items(), write.timed)
    write.list_(() if answers is None else answers.answered.items(), write.timed)


def _read_repair(read: "_Reader", channel: MessageChannel) -> None:
    requests, kept = read.list_(read.request), read.list_(read.message)
    pending, answered = read.list_(read.timed), read.list_(read.timed)
    if channel.requests is None or channel.answers is None:
        return
    for due_ms, entry in requests:
        channel.requests.put(entry, due_ms)
    for message in kept:
        channel.answers.keep(message)
    channel.answers.pending = {key: at for key, at in pending if key in channel.answers.kept}
    channel.answers.answered.update(answered)


def _write_telling(write: "_Writer", channel: MessageChannel) -> None:
    write.list_(channel.heads.ids, write.text)
    write.number(channel.showing.due)
    write.number(channel.showing.last_ms)
    write.float_(channel.pace.rarer)


def _read_telling(read: "_Reader", channel: MessageChannel) -> None:
    channel.heads.ids = dict.fromkeys(read.list_(read.text))
    channel.showing.due = bool(read.number())
    channel.showing.last_ms = read.number()
    channel.pace.rarer = read.float_()


def _write_claims(write: "_Writer", channel: MessageChannel) -> None:
    claims = channel.claims
    write.list_(claims.unproven.items(), write.unproven)
    write.bytes_(claims.older.digests())


def _read_claims(read: "_Reader", channel: MessageChannel) -> None:
    claims = channel.claims
    claims.unproven.update(read.list_(read.unproven))
    claims.older = IdSet.from_digests(claims.older.salt, read.bytes_())


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=CHECKSUM_BYTES).digest()


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def number(self, value: int) -> None:
        encoded = bytearray()
        while value > 0x7F:
            encoded.append(value & 0x7F | 0x80)
            value >>= 7
        encoded.append(value)
        self.parts.append(bytes(encoded))

    def float_(self, value: float) -> None:
        self.parts.append(_FLOAT.pack(value))

    def bytes_(self, value: bytes) -> None:
        self.number(len(value))
        self.parts.append(value)

    def text(self, value: str) -> None:
        self.bytes_(value.encode())

    def maybe(self, value: bytes | None) -> None:
        self.list_(() if value is None else (value,), self.bytes_)

    def list_(self, values: Iterable[_T], write: Callable[[_T], None]) -> None:
        chosen = list(values)
        self.number(len(chosen))
        for value in chosen:
            write(value)

    def timed(self, item: tuple[str, int]) -> None:
        self.text(item[0])
        self.number(item[1])

    def message(self, message: SdsMessage) -> None:
        self.bytes_(encode_message(message))

    def outgoing(self, value: Outgoing) -> None:
        self.message(value.message)
        self.number(value.due_ms)
        self.number(value.sends)
        self.list_(value.witnesses, self.number)
        self.float_(value.error)

    def waiting(self, value: Waiting) -> None:
        self.message(value.message)
        self.maybe(value.hint)
        self.number(value.arrived_ms)
        self.list_(sorted(value.unmet), self.text)

    def want(self, item: tuple[str, Want]) -> None:
        self.timed((item[0], item[1].since_ms))
        self.list_(item[1].hints, self.bytes_)
        self.text(item[1].sender_id or "")

    def unproven(self, item: tuple[str, Unproven]) -> None:
        self.timed((item[0], item[1].lamport))
        self.bytes_(item[1].digest)
        self.number(item[1].own)

    def request(self, item: tuple[int, Entry]) -> None:
        self.timed((item[1].message_id, item[0]))
        self.maybe(item[1].hint)
        self.text(item[1].sender_id or "")


class _Reader:
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start

    def number(self) -> int:
        value = shift = 0
        while shift <= _MAX_SHIFT:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise SnapshotError("the snapshot has a number that is too long")

    def float_(self) -> float:
        (value,) = _FLOAT.unpack_from(self._data, self._at)
        self._at += _FLOAT.size
        return float(value)

    def bytes_(self) -> bytes:
        size = self.number()
        value = self._data[self._at : self._at + size]
        if len(value) != size:
            raise SnapshotError("the snapshot is cut short")
        self._at += size
        return value

    def text(self) -> str:
        return self.bytes_().decode()

    def maybe(self) -> bytes | None:
        found = self.list_(self.bytes_)
        return found[0] if found else None

    def list_(self, read: Callable[[], _T]) -> list[_T]:
        count = self.number()
        if count > len(self._data) - self._at:
            raise SnapshotError("the snapshot has a list that is longer than itself")
        return [read() for _ in range(count)]

    def timed(self) -> tuple[str, int]:
        return self.text(), self.number()

    def message(self) -> SdsMessage:
        return decode_message(self.bytes_(), stored=True)

    def outgoing(self, config: ChannelConfig) -> Outgoing:
        message = self.message()
        probe = config.filter.probe(message.message_id)
        due_ms, sends = self.number(), self.number()
        return Outgoing(message, probe, due_ms, sends, self.list_(self.number), self.float_())

    def waiting(self, version: int) -> Waiting:
        message, hint, arrived_ms = self.message(), self.maybe(), self.number()
        unmet = set(self.list_(self.text))
        if version <= 2:
            # What it waited for in vain; that is found in its history.
            self.list_(self.text)
        return Waiting(message, hint, arrived_ms, unmet)

    def want(self) -> tuple[str, Want]:
        message_id, since_ms = self.timed()
        return message_id, Want(since_ms, self.list_(self.bytes_), self.text() or None)

    def unproven(self) -> tuple[str, Unproven]:
        message_id, lamport = self.timed()
        return message_id, Unproven(lamport, self.bytes_(), bool(self.number()))

    def request(self) -> tuple[int, Entry]:
        message_id, due_ms = self.timed()
        return due_ms, Entry(message_id, self.maybe(), self.text() or None)

    def end(self) -> None:
        if self._at != len(self._data):
            raise SnapshotError("the snapshot goes on after its end")
