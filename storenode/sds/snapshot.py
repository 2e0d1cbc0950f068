"""The whole state of a channel as bytes, and back.

Layout: magic ``SDSC``, one byte of version, the parts in the order of `_parts`, then 16 bytes of
BLAKE2 over all that precedes them. Numbers are LEB128, texts and bytes carry their length.
How long somebody's filters lack something is not kept: that begins anew. The checksum finds
damage; a snapshot is the participant's own file, and is not meant to be taken from strangers.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from storenode.sds.bloom import RollingFilter
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Claims, Unproven
from storenode.sds.codec import Entry, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Counts
from storenode.sds.ids import IdSet
from storenode.sds.incoming import Waiting, Want
from storenode.sds.log import Log
from storenode.sds.outgoing import Outgoing

MAGIC: Final = b"SDSC"
VERSION: Final = 4

CHECKSUM_BYTES: Final = 16
_FLOAT: Final = struct.Struct(">d")
_MAX_SHIFT: Final = 63


class SnapshotError(ValueError):
    """The bytes are not a snapshot that this channel can go on from."""


def snapshot(channel: MessageChannel) -> bytes:
    """Encode the whole state; the channel goes on unchanged."""
    written = bytearray(MAGIC + bytes([VERSION]))
    for form, value in _parts(channel):
        form.write(written, value)
    return bytes(written) + _checksum(written)


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
    if version != VERSION:
        raise SnapshotError(f"the snapshot has version {version}: only {VERSION} can be read")
    try:
        return _restore(config, _Source(body, len(MAGIC) + 1))
    except SnapshotError:
        raise
    except (ValueError, IndexError, struct.error) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error


class _Source:
    """Bytes, and where to go on reading."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.at = start

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        value = self.data[self.at : self.at + size]
        if len(value) != size:
            raise SnapshotError("the snapshot is cut short")
        self.at += size
        return value


class _Form(NamedTuple):
    """How a value is written, and read back."""

    write: Callable[[bytearray, Any], None]
    read: Callable[[_Source], Any]


def _write_number(written: bytearray, value: int) -> None:
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)


def _read_number(source: _Source) -> int:
    value = shift = 0
    while shift <= _MAX_SHIFT:
        byte = source.data[source.at]
        source.at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise SnapshotError("the snapshot has a number that is too long")


def _write_bytes(written: bytearray, value: bytes) -> None:
    _write_number(written, len(value))
    written += value


def _made_of(form: _Form, taken: Callable[[Any], Any], made: Callable[[Any], Any]) -> _Form:
    """Return a form that writes changed values by another form, and reads them back."""
    return _Form(
        lambda written, value: form.write(written, taken(value)),
        lambda source: made(form.read(source)),
    )


def _list_of(form: _Form) -> _Form:
    def write(written: bytearray, values: Iterable[Any]) -> None:
        chosen = list(values)
        _write_number(written, len(chosen))
        for value in chosen:
            form.write(written, value)

    def read(source: _Source) -> list[Any]:
        count = _read_number(source)
        if count > len(source.data) - source.at:
            raise SnapshotError("the snapshot has a list that is longer than itself")
        return [form.read(source) for _ in range(count)]

    return _Form(write, read)


def _maybe(form: _Form) -> _Form:
    return _made_of(
        _list_of(form),
        lambda value: () if value is None else (value,),
        lambda found: found[0] if found else None,
    )


def _row(*forms: _Form) -> _Form:
    def write(written: bytearray, values: Iterable[Any]) -> None:
        for form, value in zip(forms, values, strict=True):
            form.write(written, value)

    return _Form(write, lambda source: tuple([form.read(source) for form in forms]))


_NUMBER: Final = _Form(_write_number, _read_number)
_FLAG: Final = _made_of(_NUMBER, int, bool)
_REAL: Final = _Form(
    lambda written, value: written.extend(_FLOAT.pack(value)),
    lambda source: _FLOAT.unpack(source.take(_FLOAT.size))[0],
)
_BYTES: Final = _Form(_write_bytes, lambda source: source.take(_read_number(source)))
_TEXT: Final = _made_of(_BYTES, str.encode, bytes.decode)
_MAYBE_TEXT: Final = _made_of(_TEXT, lambda text: text or "", lambda text: text or None)
_TEXTS: Final = _list_of(_TEXT)
_NUMBERS: Final = _list_of(_NUMBER)
_PAGES: Final = _list_of(_BYTES)
_TIMES: Final = _made_of(_list_of(_row(_TEXT, _NUMBER)), lambda times: times.items(), dict)
_MESSAGE: Final = _made_of(_BYTES, encode_message, partial(decode_message, stored=True))
_MESSAGES: Final = _list_of(_MESSAGE)
_OUTGOING: Final = _list_of(_row(_MESSAGE, _NUMBER, _NUMBER, _NUMBERS, _REAL))
_WAITING: Final = _list_of(_row(_MESSAGE, _maybe(_BYTES), _NUMBER, _TEXTS))
_WANTS: Final = _list_of(_row(_TEXT, _NUMBER, _PAGES, _MAYBE_TEXT, _TEXT))
_REQUESTERS: Final = _made_of(_list_of(_row(_TEXT, _TEXT)), lambda names: names.items(), dict)
_REQUESTS: Final = _list_of(_row(_TEXT, _NUMBER, _maybe(_BYTES), _MAYBE_TEXT))
_UNPROVEN: Final = _list_of(_row(_TEXT, _NUMBER, _BYTES, _FLAG))


def _parts(channel: MessageChannel) -> Iterator[tuple[_Form, object]]:
    """Yield the parts in the order of writing; `_restore` reads the same."""
    config, log, clock, incoming = channel.config, channel.log, channel.clock, channel.incoming
    yield _row(_TEXT, _TEXT), (config.channel_id, config.sender_id)
    yield _row(_NUMBER, _NUMBER), (config.filter.bits, config.filter.hashes)
    packed, newest = log.pages()
    yield _row(_BYTES, _PAGES, _PAGES), (log.met.salt, packed, newest)
    yield _row(_BYTES, _NUMBER), (log.met.digests(), log.pruned)
    yield _BYTES, channel.filter.pairs()
    yield _row(_NUMBER, _NUMBER, _NUMBER), (clock.value, clock.latest_ms, clock.set_back_ms)
    yield _row(_NUMBER, _NUMBER), (channel.sends, channel.told_ms)
    yield _NUMBERS, astuple(channel.counts)
    yield _TEXTS, channel.lost
    yield (
        _OUTGOING,
        [
            (each.message, each.due_ms, each.sends, each.witnesses, each.error)
            for each in channel.outgoing.by_id.values()
        ],
    )
    yield (
        _WAITING,
        [
            (each.message, each.hint, each.arrived_ms, sorted(each.unmet))
            for each in incoming.waiting.values()
        ],
    )
    yield (
        _WANTS,
        [
            (key, each.since_ms, each.hints, each.sender_id, each.named_by)
            for key, each in incoming.wants.items()
        ],
    )
    pace, gaps = channel.pace, channel.gaps
    yield _row(_NUMBER, _NUMBER, _TIMES), (pace.active_ms, pace.spoke_ms, pace.owed)
    yield _row(_maybe(_REAL), _list_of(_REAL)), (pace.silence, pace.limits or ())
    yield _row(_maybe(_NUMBER), _TIMES), (gaps.looked_ms, gaps.told)
    requests, answers = channel.requests, channel.answers
    due = () if requests is None else requests.due.values()
    yield (
        _REQUESTS,
        [(entry.message_id, due_ms, entry.hint, entry.sender_id) for due_ms, entry in due],
    )
    yield _MESSAGES, () if answers is None else answers.kept.values()
    yield _row(_TIMES, _TIMES), ({}, {}) if answers is None else (answers.pending, answers.answered)
    budget = None if answers is None else answers.budget
    yield _REQUESTERS, {} if answers is None else answers.requesters
    yield _row(_NUMBER, _TIMES), (0, {}) if budget is None else (budget.epoch, budget.spent)
    yield _NUMBER, channel.asks_in_vain
    showing = channel.showing
    yield _row(_TEXTS, _FLAG), (channel.heads.ids, showing.due)
    yield _row(_NUMBER, _REAL), (showing.last_ms, pace.rarer)
    claims = channel.claims
    yield (
        _UNPROVEN,
        [(key, each.lamport, each.digest, each.own) for key, each in claims.unproven.items()],
    )
    yield _BYTES, claims.older.digests()


class _NoChance:
    def uniform(self, a: float, b: float) -> float:
        """Return a value that is replaced at once."""
        return min(a, b)


def _restore(config: ChannelConfig, source: _Source) -> MessageChannel:
    _check_identity(source, config)
    channel = MessageChannel(config, 0, _NoChance())
    _read_log(source, channel)
    channel.filters.own = RollingFilter.from_pairs(config.filter, _BYTES.read(source))
    clock = channel.clock
    clock.value, clock.latest_ms, clock.set_back_ms = (_read_number(source) for _ in range(3))
    channel.sends, channel.told_ms = _read_number(source), _read_number(source)
    counts = _NUMBERS.read(source)
    if len(counts) > len(fields(Counts)):
        raise SnapshotError("the snapshot has other counts than this version")
    channel.counts = Counts(*counts)
    channel.lost = dict.fromkeys(_TEXTS.read(source))
    for message, *rest in _OUTGOING.read(source):
        channel.outgoing.add(Outgoing(message, config.filter.probe(message.message_id), *rest))
    channel.incoming.restore(
        [
            Waiting(message, hint, arrived_ms, set(unmet))
            for message, hint, arrived_ms, unmet in _WAITING.read(source)
        ],
        [(key, Want(*rest)) for key, *rest in _WANTS.read(source)],
    )
    _read_pace(source, channel)
    _read_repair(source, channel)
    channel.heads.ids = dict.fromkeys(_TEXTS.read(source))
    channel.showing.due, channel.showing.last_ms = _FLAG.read(source), _read_number(source)
    channel.pace.rarer = _REAL.read(source)
    claims = channel.claims
    claims.unproven.update((key, Unproven(*rest)) for key, *rest in _UNPROVEN.read(source))
    claims.older = IdSet.from_digests(claims.older.salt, _BYTES.read(source))
    if source.at != len(source.data):
        raise SnapshotError("the snapshot goes on after its end")
    known = len(channel.log) + channel.log.pruned + len(channel.incoming.waiting)
    channel.filter.complete = known <= len(channel.filter)
    return channel


def _check_identity(source: _Source, config: ChannelConfig) -> None:
    found = _TEXT.read(source), _TEXT.read(source)
    if found != (config.channel_id, config.sender_id):
        raise SnapshotError(f"the snapshot is of channel {found[0]!r} and sender {found[1]!r}")
    if (_read_number(source), _read_number(source)) != (config.filter.bits, config.filter.hashes):
        raise SnapshotError("the snapshot was taken with a filter of another shape")


def _read_log(source: _Source, channel: MessageChannel) -> None:
    channel.log = Log(_BYTES.read(source))
    channel.claims = Claims(channel.log.met.salt)
    channel.log.restore(_PAGES.read(source), _PAGES.read(source), _BYTES.read(source))
    channel.log.pruned = _read_number(source)


def _read_pace(source: _Source, channel: MessageChannel) -> None:
    pace, gaps = channel.pace, channel.gaps
    pace.active_ms, pace.spoke_ms = _read_number(source), _read_number(source)
    pace.owed = _TIMES.read(source)
    pace.silence, limits = _maybe(_REAL).read(source), _list_of(_REAL).read(source)
    pace.limits = (limits[0], limits[1]) if limits else None
    gaps.looked_ms, gaps.told = _maybe(_NUMBER).read(source), _TIMES.read(source)


def _read_repair(source: _Source, channel: MessageChannel) -> None:
    requests, kept = _REQUESTS.read(source), _MESSAGES.read(source)
    pending, answered = _TIMES.read(source), _TIMES.read(source)
    requesters, epoch, spent = _REQUESTERS.read(source), _read_number(source), _TIMES.read(source)
    channel.asks_in_vain = _read_number(source)
    if channel.requests is None or channel.answers is None:
        return
    for message_id, due_ms, hint, sender_id in requests:
        channel.requests.put(Entry(message_id, hint, sender_id), due_ms)
    for message in kept:
        channel.answers.keep(message)
    channel.answers.pending = {
        key: at for key, at in pending.items() if key in channel.answers.kept
    }
    channel.answers.answered.update(answered)
    channel.answers.requesters.update(requesters)
    channel.answers.budget.epoch, channel.answers.budget.spent = epoch, Counter(spent)


def _checksum(body: bytes | bytearray) -> bytes:
    return blake2b(body, digest_size=CHECKSUM_BYTES).digest()
