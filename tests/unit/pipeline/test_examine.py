"""The graphs of an audit against a plain one: whatever is claimed, the same is found."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from store.pipeline.audit.examine import (
    CHANNEL,
    CLAIMED,
    COUNTS,
    CYCLE,
    MISSING,
    ROWS,
    VIOLATION,
    examine,
)
from tests.support.audit_oracle import Claim, audited

ALL = frozenset({CHANNEL, CLAIMED, CYCLE, MISSING, VIOLATION})
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
    usual = {"own": True, "lamport": 0, "ts": 1, "h0": 0}
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
    return pa.RecordBatch.from_pylist(rows, ROWS)


def found(rows: pa.RecordBatch) -> dict[str, list[dict[str, object]]]:
    by_kind: dict[str, list[dict[str, object]]] = {kind: [] for kind in ALL}
    for each in examine(rows):
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
    edge = ("channel", "message_id", "other")
    assert names_of(got[MISSING], *edge) == wanted.missing
    assert names_of(got[VIOLATION], *edge) == wanted.violations
    assert {(r["channel"], r["message_id"]): r["other"] for r in got[CYCLE]} == wanted.cycles
    claimed = sorted((r["channel"], r["message_id"], r["ts"]) for r in got[CLAIMED])
    assert claimed == wanted.claimed
    assert len(got[CHANNEL]) == len(wanted.channels)
    for row in got[CHANNEL]:
        channel = wanted.channels[row["channel"]]  # type: ignore[index]
        assert row["counts"][: len(COUNTS)] == [channel.counts[name] for name in COUNTS]  # type: ignore[index]
        lamport = None if row["lamport"] is None else row["lamport"] % 2**64  # type: ignore[operator]
        point = None if lamport is None else (lamport, row["message_id"], row["ts"])
        assert point == channel.point


def test_a_chain_deeper_than_any_recursion_is_examined() -> None:
    depth = 50_000
    chain: list[Claim] = [
        ("deep", f"{number}", number, number + 1, 0, [f"{number - 1}"]) for number in range(depth)
    ]
    got = found(batch(chain))
    (channel,) = got[CHANNEL]
    assert channel["counts"][COUNTS.index("incomplete")] == depth  # type: ignore[index]
    assert names_of(got[MISSING], "message_id", "other") == {("0", "-1")}


def test_ids_outside_of_a_range_count_and_are_not_reported() -> None:
    rows = batch([("one", "own", 5, 1, 0, ["early", "bad"]), ("one", "tip", 6, 1, 0, ["own"])])
    ghosts = [
        row("one", "early", own=False, lamport=7),
        row("one", "bad", own=False, lamport=2),
        row("one", "child", own=False, lamport=9, parents=["tip", "own"]),
    ]
    got = found(pa.concat_batches([rows, pa.RecordBatch.from_pylist(ghosts, ROWS)]))
    assert not got[MISSING]
    assert names_of(got[VIOLATION], "message_id", "other") == {("own", "early")}
    (block,) = got[CHANNEL]
    counts = dict(zip(COUNTS, block["counts"], strict=False))  # type: ignore[call-overload]
    assert (counts["messages"], counts["forks"], block["message_id"]) == (2, 1, "tip")
    assert (counts["heads"], counts["incomplete"]) == (0, 0)
