"""The graphs of an audit against a plain one: whatever is claimed, the same is found."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.pipeline.audit.examine import examine
from store.pipeline.causal.packed import BUCKET
from store.pipeline.causal.passes import entries_of, shortened, whole_blocks
from store.pipeline.audit.findings import (
    BLOCK,
    CLAIMED,
    COUNTS,
    CYCLE,
    HEAD,
    INCOMPLETE,
    MISSING,
    ORPHAN,
    VIOLATION,
)
from storenode.sds.limits import MAX_ID_BYTES
from tests.support.audited import Claim, audited

ALL = frozenset({BLOCK, CLAIMED, CYCLE, HEAD, INCOMPLETE, MISSING, ORPHAN, VIOLATION})
SCHEMA = pa.schema(
    [
        ("channel", pa.string()),
        ("block", pa.int32()),
        ("message_id", pa.string()),
        ("own", pa.bool_()),
        ("tainted", pa.bool_()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("h0", pa.int64()),
        ("parents", pa.list_(pa.string())),
    ]
)
MOST = 2**64 - 1

names = st.sampled_from(["a", "b", "c", "ё", "e\0", "é", "g"])
lamports = st.one_of(st.none(), st.integers(0, 5), st.sampled_from([2**63 - 1, 2**63, MOST]))
claims = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        names,
        lamports,
        st.integers(1, 9),
        st.integers(-(2**63), 2**63 - 1),
        st.lists(st.one_of(names, st.sampled_from(["lost", "gone"])), max_size=4),
    ),
    max_size=20,
)


def row(channel: str, message_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - of columns
    usual = {"block": 0, "own": True, "tainted": False, "lamport": 0, "ts": 1, "h0": 0}
    return {"channel": channel, "message_id": message_id, **usual, "parents": [], **more}


def batch(given: list[Claim]) -> pa.RecordBatch:
    rows = [
        row(
            channel,
            name,
            lamport=None if lamport is None else (lamport + 2**63) % 2**64 - 2**63,
            ts=ts,
            h0=h0,
            parents=parents,
        )
        for channel, name, lamport, ts, h0, parents in sorted(given, key=lambda each: each[0])
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def found(rows: pa.RecordBatch) -> dict[str, list[dict[str, object]]]:
    by_kind: dict[str, list[dict[str, object]]] = {kind: [] for kind in ALL}
    for each in examine(rows, ALL):
        each.validate(full=True)
        for row in each.to_pylist():
            by_kind[row["kind"]].append(row)
    return by_kind


def names_of(rows: list[dict[str, object]], *columns: str) -> set[tuple[object, ...]]:
    several = [tuple(row[column] for column in columns) for row in rows]
    assert len(set(several)) == len(several)
    return set(several)


@settings(max_examples=150, deadline=None)
@given(claims)
def test_what_is_found_is_what_a_plain_audit_finds(given: list[Claim]) -> None:
    wanted, got = audited(given), found(batch(given))
    pair, edge = ("channel", "message_id"), ("channel", "message_id", "other")
    assert names_of(got[MISSING], *edge) == wanted.missing
    assert names_of(got[VIOLATION], *edge) == wanted.violations
    assert names_of(got[INCOMPLETE], *pair) == wanted.incomplete
    assert names_of(got[HEAD], *pair) == wanted.heads
    assert names_of(got[ORPHAN], *pair) == wanted.orphans
    assert {(r["channel"], r["message_id"]): r["other"] for r in got[CYCLE]} == wanted.cycles
    claimed = sorted((r["channel"], r["message_id"], r["ts"]) for r in got[CLAIMED])
    assert claimed == wanted.claimed
    assert len(got[BLOCK]) == len(wanted.channels)
    for row in got[BLOCK]:
        channel = wanted.channels[row["channel"]]  # type: ignore[index]
        assert row["counts"][: len(COUNTS)] == [channel.counts[name] for name in COUNTS]  # type: ignore[index]
        lamport = None if row["lamport"] is None else row["lamport"] % 2**64  # type: ignore[operator]
        point = None if lamport is None else (lamport, row["message_id"], row["ts"])
        assert point == channel.point


def test_a_chain_deeper_than_any_recursion_is_gone_through() -> None:
    depth = 50_000
    chain: list[Claim] = [
        ("deep", f"{number}", number, number + 1, 0, [f"{number - 1}"]) for number in range(depth)
    ]
    got = found(batch(chain))
    assert len(got[INCOMPLETE]) == depth
    assert names_of(got[MISSING], "message_id", "other") == {("0", "-1")}


def test_what_is_known_of_other_blocks_counts_and_is_not_reported() -> None:
    rows = batch([("one", "own", 5, 1, 0, ["early", "bad"]), ("one", "tip", 6, 1, 0, ["own"])])
    ghosts = [
        row("one", "early", own=False, lamport=7),
        row("one", "bad", own=False, tainted=True, lamport=2),
        row("one", "child", own=False, lamport=9, parents=["tip", "own"]),
    ]
    got = found(pa.concat_batches([rows, pa.RecordBatch.from_pylist(ghosts, SCHEMA)]))
    assert not got[MISSING]
    assert not got[HEAD]
    assert names_of(got[INCOMPLETE], "message_id") == {("own",), ("tip",)}
    assert names_of(got[VIOLATION], "message_id", "other") == {("own", "early")}
    (block,) = got[BLOCK]
    counts = dict(zip(COUNTS, block["counts"], strict=False))  # type: ignore[call-overload]
    assert (counts["messages"], counts["forks"], block["message_id"]) == (2, 1, None)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 3)), max_size=40),
    st.integers(1, 7),
    st.integers(1, 30),
)
def test_blocks_are_taken_whole_however_they_are_cut_into_batches(
    keys: list[tuple[int, int, int]], size: int, entries: int
) -> None:
    rows = [
        {
            **row(str(channel), str(place), block=block, parents=["p"] * parents),
            BUCKET: 3 * channel + block,
        }
        for place, (channel, block, parents) in enumerate(sorted(keys))
    ]
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA.append(pa.field(BUCKET, pa.int64())))
    batches = [whole.slice(start, size) for start in range(0, len(whole), size)]
    got = list(whole_blocks(iter(batches), entries))
    assert [row for each in got for row in each.to_pylist()] == rows
    ends = [(each["channel"][0], each["block"][0]) for each in got]
    assert len(set(ends)) == len(ends)
    sizes = Counter[tuple[int, int]]()
    for channel, block, parents in keys:
        sizes[channel, block] += 1 + parents
    largest = max(sizes.values(), default=0)
    assert all(entries_of(each) <= max(entries, largest) for each in got)
    for one, two in pairwise(got):
        last, begin = one.slice(len(one) - 1).to_pylist()[0], two.slice(0, 1).to_pylist()[0]
        assert (last["channel"], last["block"]) != (begin["channel"], begin["block"])


def test_nothing_is_examined_with_a_large_channel_that_comes_after_it() -> None:
    """Neither it nor what follows is held for longer than it takes."""
    sizes = [90, *[5] * 12]
    batches = [
        batch([(f"{bucket}", f"{number}", 1, 1, 0, []) for number in range(size)]).append_column(
            BUCKET, pa.array(np.full(size, bucket))
        )
        for bucket, size in enumerate(sizes)
    ]
    assert [len(each) for each in whole_blocks(iter(batches), 20)] == [90, 20, 20, 20]


@pytest.mark.parametrize("letter", ["p", "ж"])
def test_a_name_that_is_too_long_takes_no_memory_and_is_still_missing(letter: str) -> None:
    long = letter * 100_000
    rows = shortened(batch([("one", "x", 1, 1, 0, ["y", long]), ("one", "y", 0, 1, 0, [])]))
    (got,) = found(rows)[MISSING]
    name = got["other"]
    assert isinstance(name, str)
    assert MAX_ID_BYTES < len(name.encode()) < 4 * MAX_ID_BYTES
    assert name.startswith(letter * MAX_ID_BYTES)
