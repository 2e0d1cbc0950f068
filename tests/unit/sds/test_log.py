"""The memory of a channel: its log, filters, and snapshots from which it goes on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, filter_of, holds
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Packet
from storenode.sds.log import LogEntry, MessageLog
from storenode.sds.snapshot import (
    CHECKSUM_BYTES,
    VERSION,
    SnapshotError,
    _checksum,
    restore,
    snapshot,
)
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, log_ids, make_rng, take, wire


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_match_a_sorted_list(seed: int) -> None:
    rng, log = make_rng(seed), MessageLog(bytes(16), kept=40)
    came: list[tuple[int, str]] = []
    here: list[tuple[int, str]] = []
    for number in range(1_500):
        lamport = number * 3 + rng.randrange(8) if rng.random() < 0.7 else rng.randrange(4_500)
        key = lamport, f"{rng.randrange(10**9)}"
        assert log.insert(LogEntry(*key, "s", b"hint")) == sum(each > key for each in here)
        came.append(key)
        here = sorted(came[-len(list(log.entries())) :])
        if number % 10 == 9:
            gone = rng.choice(here)
            came.remove(gone)
            here.remove(gone)
            log.remove(gone)
            assert gone[1] not in log
        assert [entry.key for entry in log.entries()] == here
        key, count = rng.choice(came), rng.randrange(1, 12)
        before = [each for each in here if each < key][-count:]
        assert [entry.key for entry in log.preceding(key, count)] == before
    log.check()
    assert len(log) == len(came) > len(here) >= 40
    assert all(message_id in log for _, message_id in came)
    assert "other" not in log
    log.remove(came[0])
    assert came[0][1] not in log


def test_entries_far_ahead_do_not_keep_others_out_of_memory() -> None:
    log = MessageLog(bytes(16), kept=40)
    for number in range(1_000):
        log.insert(LogEntry(2**63 + number, f"far{number}", "s"))
    for number in range(50):
        log.insert(LogEntry(number, f"near{number}", "s"))
        assert log.preceding((number + 1, ""), 1)[0].message_id == f"near{number}"
    log.check()


shapes = st.builds(FilterShape, st.integers(1, 60), st.sampled_from([0.5, 0.1, 0.01, 1e-6]))


def bit(encoded: bytes, position: int) -> int:
    """Return bit of the words as the layout describes them, one step at a time."""
    word = int.from_bytes(encoded[position // 64 * 8 : position // 64 * 8 + 8], "big")
    return word >> (position % 64) & 1


@given(shapes, st.lists(st.text(max_size=12), unique=True, max_size=150), st.text(max_size=12))
def test_a_rolling_filter_holds_the_newest(
    shape: FilterShape, inserted: list[str], other: str
) -> None:
    rolling = RollingFilter(shape)
    kept: list[str] = []
    for item in inserted:
        if len(kept) == shape.capacity:
            kept = kept[len(kept) - shape.capacity // 2 :]
        kept.append(item)
        rolling.add(item)
        assert len(rolling) == len(kept)
    positions = {position for item in kept for position in shape.positions(item)}
    encoded = rolling.encode()
    assert [bit(encoded, n) for n in range(shape.bits)] == [
        n in positions for n in range(shape.bits)
    ]
    assert encoded == filter_of(shape, kept)
    assert (other in rolling) == (set(shape.positions(other)) <= positions)
    assert holds(encoded, shape.probe(other)) == (other in rolling)


def test_the_error_probability_follows_from_fill_and_hashes() -> None:
    shape = FilterShape(1_000, 0.001)
    full = filter_of(shape, [str(n) for n in range(1_000)])
    assert shape.false_positive_rate(bytes(shape.size_bytes)) == 0
    assert 0.0003 < shape.false_positive_rate(full) < 0.0015
    wrong = sum(holds(full, shape.probe(f"other{n}")) for n in range(20_000)) / 20_000
    assert wrong == pytest.approx(shape.false_positive_rate(full), rel=0.8)
    assert shape.false_positive_rate(b"\xff" * shape.size_bytes) == 1


@pytest.mark.parametrize(
    ("capacity", "rate"), [(0, 0.1), (-1, 0.1), (10**6 + 1, 0.1), (1, 0), (1, 1.0), (1, -0.1)]
)
def test_a_shape_that_cannot_be_is_refused(capacity: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"filter|rate"):
        FilterShape(capacity, rate)


# Snapshots


def full_channel() -> MessageChannel:
    """Return one of everything: log, buffers, wishes, requests, answers, what is lost, gaps."""
    me = channel(repair=QUICK_REPAIR, lost_after_ms=5_000, gap_entries=2, possible_acks=3)
    for number in range(30):
        me.send(NOW + number, b"%d" % number, f"mine{number}")
    me.published("mine3", b"hint")
    take(me, wire("gone-by", after=["lost"], lamport=NOW + 1))
    take(me, wire("seen", after=["mine1"], seen=["mine2", "mine3"], asks=["mine4"]))
    me.tick(NOW + 6_000, make_rng())
    take(me, wire("waits", after=[Entry("m", b"h", "x")], lamport=NOW + 9), now=NOW + 6_500)
    take(me, wire("s", after=["m", "waits"], content=None, lamport=NOW + 60_000), now=NOW + 7_000)
    take(me, wire("full", seen=["seen"], lamport=NOW + 90_000), now=NOW + 90_000)
    return me


@cache
def saved() -> tuple[ChannelConfig, bytes]:
    """Return the configuration and the snapshot of a full channel."""
    me = full_channel()
    return me.config, snapshot(me)


def test_a_restored_channel_behaves_as_the_saved_one() -> None:
    me = full_channel()
    data = snapshot(me)
    again = restore(me.config, data)
    again.check()
    assert snapshot(again) == data
    assert (me.lost, len(me.incoming), bool(me.gaps.pending)) == ({"lost": None}, 2, True)
    packets = [Packet(wire("m", lamport=NOW)), Packet(wire("later", after=["m", "waits"]))]
    for now in range(NOW + 91_000, NOW + 200_000, 700):
        ours, theirs = me.tick(now, make_rng(now)), again.tick(now, make_rng(now))
        assert ours == theirs
        assert me.next_due_ms(make_rng(now)) == again.next_due_ms(make_rng(now))
    assert me.receive(NOW, packets) == again.receive(NOW, packets)
    assert me.send(NOW, b"next") == again.send(NOW, b"next")
    assert snapshot(me) == snapshot(again)


def test_what_left_memory_is_known_after_a_restart() -> None:
    me = channel(max_outgoing=10_000)
    me.log = MessageLog(me.log.salt, kept=10)
    for number in range(600):
        me.send(NOW + number, b"%d" % number, f"m{number}")
    again = restore(me.config, snapshot(me))
    again.check()
    assert log_ids(again) == log_ids(me)
    assert again.log.older == me.log.older
    assert all(f"m{number}" in again.log for number in range(600))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_refused(data: st.DataObject) -> None:
    config, good = saved()
    place = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = bytearray(good)
    flipped[place] ^= 1 << bit
    for damaged in (bytes(flipped), good[:place], good + b"x"):
        with pytest.raises(SnapshotError):
            restore(config, damaged)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_under_a_right_checksum_is_an_error_or_a_channel(data: st.DataObject) -> None:
    config, good = saved()
    body = bytearray(good[:-CHECKSUM_BYTES])
    body[data.draw(st.integers(5, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(SnapshotError):
        restore(config, bytes(body) + _checksum(bytes(body)))


def test_what_belongs_elsewhere_is_refused() -> None:
    me = channel()
    data = snapshot(me)
    others = [
        replace(me.config, sender_id="you"),
        replace(me.config, channel_id="hall"),
        replace(me.config, filter=FilterShape(999, 0.001)),
    ]
    for other in others:
        with pytest.raises(SnapshotError, match="snapshot"):
            restore(other, data)
    for version in (VERSION - 1, VERSION + 1):
        other_version = bytearray(data[:-CHECKSUM_BYTES])
        other_version[4] = version
        with pytest.raises(SnapshotError, match=f"version {version}"):
            restore(me.config, bytes(other_version) + _checksum(bytes(other_version)))
    with pytest.raises(SnapshotError, match="no snapshot"):
        restore(me.config, b"")
