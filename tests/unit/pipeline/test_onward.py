"""What new messages change is what an audit of everything finds, round after round."""

from __future__ import annotations

import random
from collections import defaultdict
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store.pipeline.audit.examine import examine
from store.pipeline.causal.gone_through import LOOKED_FOR
from store.pipeline.causal.packed import rows_of_claims
from store.pipeline.audit.findings import (
    BLOCK,
    COUNTS,
    CYCLE,
    DIGEST_BYTES,
    KEPT,
    MISSING,
    NODES,
    VIOLATION,
)
from store.pipeline.columns import ARROW
from store.pipeline.limits import DAY_NS
from store.pipeline.results.changes import held_in
from store.pipeline.results.kept import (
    IDS,
    MERGED_AT,
    MERGED_ROWS,
    NAMED,
    NODE,
    Known,
    begun,
    found,
    held,
    marked,
    merged,
    to_merge,
    voided,
)
from store.pipeline.results.onward import READ, EverythingChangedError, Past, go_on
from store.pipeline.results.tables import SCHEMAS

CHANNELS = ("a", "b", "c")
ROUNDS = 9
Row = dict[str, Any]


def message(day: int, rng: random.Random, **more: Any) -> Row:  # noqa: ANN401 - of columns
    row = {**dict.fromkeys(READ), "ts": day * DAY_NS + rng.randrange(DAY_NS), **more}
    row["hash"] = sha256(repr(row).encode()).digest()
    words = np.frombuffer(row["hash"], "<i8").tolist()
    return {**row, **dict(zip(("h0", "h1", "h2", "h3"), words, strict=True))}


def batch(rows: list[Row]) -> pa.RecordBatch:
    schema = pa.schema([ARROW.field(name).with_nullable(True) for name in READ])
    return pa.RecordBatch.from_pylist(rows, schema)


class World:
    """Messages as they come, and what an audit of all of them finds."""

    def __init__(self, seed: int, strange: float) -> None:
        self.rng = random.Random(seed)
        self.strange = strange
        self.held: list[Row] = []
        self.late: list[Row] = []
        self.number = 0

    def grow(self, day: int) -> None:
        """A day of chains with gaps, copies, clocks that lie, hints, and IDs of other channels."""
        rng = self.rng
        for _ in range(rng.randrange(30)):
            self.number += 1
            number, channel = self.number, rng.choice(CHANNELS)
            parents = [
                {"id": f"{channel} {max(0, number - rng.randrange(1, 5))}", "hint": None}
                for _ in range(rng.randrange(3))
            ]
            name, roll = f"{channel} {number}", rng.random() / self.strange
            lamport: int | None = number
            if roll < 0.06:
                plain = message(day, rng)
                self._come(plain, 0.5)
                parents.append({"id": f"unread {number}", "hint": plain["hash"]})
            elif roll < 0.1:
                lamport = rng.choice([None, -1, max(0, number - 15)])
            elif roll < 0.15:
                name = f"{channel} {rng.randrange(1, number + 1)}"
            elif roll < 0.2:
                parents.append({"id": f"{rng.choice(CHANNELS)} {number - 5}", "hint": None})
            elif roll < 0.22:
                parents.append({"id": name, "hint": None})
            sent = message(
                day,
                rng,
                channel=channel,
                message_id=name,
                sender="s",
                lamport=lamport,
                parents=parents,
            )
            self._come(sent, 0.1)

    def _come(self, row: Row, late: float) -> None:
        (self.late if self.rng.random() < late * self.strange else self.held).append(row)

    def come_late(self) -> None:
        self.rng.shuffle(self.late)
        self.held += self.late[:4]
        del self.late[:4]

    def lose(self) -> None:
        sds = [row for row in self.held if row["channel"] is not None]
        self.held.remove(self.rng.choice(sds))

    def audited(self) -> tuple[dict[str, list[Row]], list[Row]]:
        """The tables of an audit of everything, and all IDs."""
        rows = batch([row for row in self.held if row["channel"] is not None])
        claims, plain = rows_of_claims(rows), {r["hash"] for r in self.held if r["channel"] is None}
        kinds = LOOKED_FOR | {NODES}

        def findings(given: pa.RecordBatch) -> dict[str, list[Row]]:
            by_kind: dict[str, list[Row]] = defaultdict(list)
            for some in examine(given, kinds):
                by_kind[some["kind"][0].as_py()] += some.to_pylist()
            return by_kind

        def references(by_kind: dict[str, list[Row]]) -> list[Row]:
            edges = {(e["channel"], e["message_id"], e["other"]) for e in by_kind[MISSING]}
            return [
                {**row, "parent": each["id"], "hint": each["hint"], "elsewhere": least(row, each)}
                for row in rows.to_pylist()
                for each in row["parents"] or ()
                if (row["channel"], row["message_id"], each["id"]) in edges
            ]

        def least(row: Row, parent: Row) -> str | None:
            others = {r["channel"] for r in self.held if r["message_id"] == parent["id"]}
            return min(others - {row["channel"], None}, default=None)

        found = findings(claims)
        unread = {(r["channel"], r["parent"]) for r in references(found) if r["hint"] in plain}
        outside = {"block": 0, "own": False, "tainted": False, "ts": 0, "h0": 0, "parents": []}
        known = [{**outside, "channel": c, "message_id": parent} for c, parent in unread]
        found = findings(
            pa.concat_batches([claims, pa.RecordBatch.from_pylist(known, claims.schema)])
        )
        missing = references(found)
        channels = []
        for block in found[BLOCK]:
            name, counts = block["channel"], block["counts"]
            lacked = {r["parent"] for r in missing if r["channel"] == name}
            cycles = {e["other"] for e in found[CYCLE] if e["channel"] == name}
            channels.append(
                {
                    **dict(zip(COUNTS, counts, strict=False)),
                    **{f"point_{each}": block[each] for each in ("message_id", "lamport", "ts")},
                    "channel": name,
                    "missing": len(lacked),
                    "cycles": len(cycles),
                    "broken_message_id": block["other"],
                    "broken_lamport": counts[len(COUNTS)],
                    "unread": any(name == channel for channel, _ in unread),
                }
            )
        tables = {
            "channels": channels,
            "references": missing,
            "faults": [e for kind in (VIOLATION, CYCLE) for e in found[kind]],
            "conflicts": [],
        }
        return tables, found[NODES]


def compared(tables: dict[str, Any], again: set[str]) -> dict[str, list[str]]:
    """Rows of all channels but some, in an order; what an audit does not say left out."""
    found = {}
    for name, rows in tables.items():
        wanted = [each for each in SCHEMAS[name].names if each not in ("hour", "counts", "h0")]
        texts = [
            repr([row[each] for each in wanted]) for row in rows if row["channel"] not in again
        ]
        found[name] = sorted(set(texts))  # a parent that is named twice is missing once
    return found


class Kept:
    """What is kept from one audit to the next."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, pa.RecordBatch]] = []
        self.words: list[int] = []

    def add(self, number: int, rows: pa.Table) -> None:
        more = [(number, each) for each in rows.combine_chunks().to_batches()]
        if number % 2:
            self.ids += more
        else:
            # What becomes one file has the number of the audit that makes it, and is in no order
            # with what that audit adds.
            together = merged(self.ids, voided(rows)).combine_chunks()
            self.ids = [*more, *((number, each) for each in together.to_batches())]

    def past(self, tables: dict[str, list[Row]], before: list[Row]) -> Past:
        plain = pa.record_batch([pa.array(self.words, pa.int64())], ["h0"])
        return Past(
            {name: pa.Table.from_pylist(tables[name], SCHEMAS[name]) for name in SCHEMAS},
            held_in(batch(before)),
            lambda digests: found(self.ids, digests),
            lambda asked: held(iter([plain]), asked),
        )


def ids_of(nodes: list[Row], channels: set[str] | None = None) -> pa.Table:
    """The IDs of findings as they are kept, of some channels only if they are given."""
    parts = [pa.ipc.read_record_batch(pa.py_buffer(each["data"]), KEPT) for each in nodes]
    rows = marked(pa.Table.from_batches(parts, KEPT), NODE).to_pylist()
    wanted = [row for row in rows if channels is None or row["channel"] in channels]
    return pa.Table.from_pylist(wanted, IDS)


@pytest.mark.parametrize("strange", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(8))
def test_going_on_finds_what_beginning_anew_finds(seed: int, strange: float) -> None:
    world, kept, gone_on = World(seed, strange), Kept(), 0
    world.grow(0)
    tables, nodes = world.audited()
    before = list(world.held)
    kept.add(0, ids_of(nodes))
    kept.words = [row["h0"] for row in before if row["channel"] is None]
    for number in range(1, ROUNDS):
        world.grow(number)
        world.come_late()
        if number == ROUNDS // 2:
            world.lose()
        other = [row for row in world.held if row not in before]
        other += [row for row in before if row not in world.held]
        days = {row["ts"] // DAY_NS for row in other}
        was = [row for row in before if row["ts"] // DAY_NS in days]
        now = [row for row in world.held if row["ts"] // DAY_NS in days]
        onward = go_on(kept.past(tables, was), batch(now))
        tables, nodes = world.audited()
        got = {name: rows.to_pylist() for name, rows in onward.tables.items()}
        assert compared(got, set()) == compared(tables, onward.again), number
        gone_on += len(got["channels"])
        assert onward.ids is not None
        assert onward.plain is not None
        kept.add(number, pa.concat_tables([onward.ids, ids_of(nodes, onward.again)]))
        kept.words += onward.plain["h0"].to_pylist()
        before = list(world.held)
    assert strange == 1 or gone_on > ROUNDS


def test_lost_plain_messages_change_everything() -> None:
    rng = random.Random(0)
    rows = [message(1, rng) for _ in range(3)]
    past = Past(
        {name: schema.empty_table() for name, schema in SCHEMAS.items()},
        held_in(batch(rows)),
        lambda _: {},
        lambda words: set(words.to_pylist()),
    )
    with pytest.raises(EverythingChangedError):
        go_on(past, batch(rows[:2]))


def test_only_the_newest_and_small_files_become_one() -> None:
    old = [("large", MERGED_ROWS)]
    few = [(f"{number}", 10) for number in range(MERGED_AT - 1)]
    assert to_merge([*old, *few]) == []
    assert to_merge([*old, *few, ("last", 1)]) == [*(name for name, _ in few), "last"]


def test_what_an_audit_voids_is_not_kept_with_its_number() -> None:
    digest = b"d" * DIGEST_BYTES

    def said(channel: str, mark: int) -> pa.Table:
        row = (channel, digest, 1, mark == NODE, 2, mark)
        return pa.Table.from_pylist([dict(zip(IDS.names, row, strict=True))], IDS)

    old = pa.concat_tables([said("a", NODE), said("b", NODE)]).combine_chunks().to_batches()
    more = said("a", NAMED).to_batches()
    now = begun(["a"])
    both = merged([(0, *old), (1, *more)], voided(now))
    numbered = [(2, each) for each in (*now.to_batches(), *both.to_batches())]
    assert found(numbered, pa.array([digest])) == {("b", digest): Known(1, True, 2)}
