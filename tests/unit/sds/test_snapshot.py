"""A channel goes on exactly where it was saved, and not from damaged bytes."""

from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Packet
from storenode.sds.log import MessageLog
from storenode.sds.snapshot import (
    CHECKSUM_BYTES,
    VERSION,
    SnapshotError,
    _checksum,
    restore,
    snapshot,
)
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, log_ids, make_rng, take, wire


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
