"""What new messages change in what an audit found, without the past of their channels.

A message that only adds to its channel (nobody has claimed its ID, nobody lacks it) changes nothing
of what is incomplete before it. It is examined together with the other new ones, and with what is
kept of their parents (`store.pipeline.results.kept`). A channel to which anything else happened is
named, to be gone through as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.pipeline.causal.examine import digests, examine
from store.pipeline.causal.gone_through import LOOKED_FOR
from store.pipeline.causal.packed import rows_of_claims
from store.pipeline.causal.passes import shortened
from store.pipeline.causal.rows import (
    ARROW_FINDINGS,
    BLOCK,
    CLAIMED,
    COUNTS,
    CYCLE,
    KEPT,
    MISSING,
    NODES,
    UNSEARCHED,
    VIOLATION,
)
from store.pipeline.fingerprints import HASH_WORDS, NOTHING
from store.pipeline.limits import HOUR_NS
from store.pipeline.results.changes import Held, differing, held_in
from store.pipeline.results.kept import NAMED, NODE, Ids, begun, marked
from store.pipeline.results.tables import SCHEMAS
from storenode.message.limits import HASH_BYTES

READ: Final = (
    "ts",
    *HASH_WORDS,
    "hash",
    "channel",
    "message_id",
    "sender",
    "lamport",
    "parents",
)
"""The columns of new messages."""

MAX_CLAIMANTS: Final = 16
_LARGE: Final = 50_000
"""Messages of a channel that may be one of several blocks; there, faults depend on all of it."""

_CLOCKS: Final = 2**64
_KINDS: Final = LOOKED_FOR | {NODES}
_ADDED: Final = (*COUNTS, "missing", "cycles")

Row = dict[str, Any]
Key = tuple[int, str]
"""A clock and an ID: the order of a channel."""


class EverythingChangedError(Exception):
    """What is kept does not help."""


@dataclass(frozen=True)
class Past:
    """What the last audit found: rows of `SCHEMAS`, what changed days held, and what is kept."""

    tables: Mapping[str, pa.Table]
    hours: Held
    ids: Callable[[pa.Array], Ids]
    plain: Callable[[pa.Array], set[int]]


@dataclass
class Onward:
    """What is found now, but for the channels ``again``, which must be gone through.

    ``claimed`` are findings; ``ids`` and ``plain`` are to be kept besides what is.
    """

    hours: Held
    again: set[str] = field(default_factory=set)
    tables: dict[str, pa.Table] = field(default_factory=dict)
    claimed: pa.Table = field(default_factory=ARROW_FINDINGS.empty_table)
    ids: pa.Table | None = None
    plain: pa.Table | None = None


def go_on(past: Past, rows: pa.RecordBatch) -> Onward:
    """Judge the messages of all days that have changed; ``rows`` have `READ`.

    Raises:
        EverythingChangedError: messages that are none of SDS are gone.
    """
    return _GoingOn(past, rows).judged()


class _GoingOn:
    def __init__(self, past: Past, rows: pa.RecordBatch) -> None:
        self._past = past
        self._hours, changed = differing(rows, past.hours)
        open_rows = rows.filter(changed)
        sds = pc.is_valid(open_rows["channel"])
        self._plain = open_rows.filter(pc.invert(sds))
        self._sds = open_rows.filter(sds)
        self._claims = shortened(rows_of_claims(self._sds))
        self._digests = digests(self._claims["message_id"])
        self._parents = self._claims["parents"].flatten().fill_null("")
        parents = pc.unique(self._parents)
        self._named = dict(zip(parents.to_pylist(), digests(parents).to_pylist(), strict=True))
        known = pa.concat_arrays([self._digests, pa.array([*self._named.values()], pa.binary())])
        self._ids = past.ids(known) if len(known) else {}
        self._references = past.tables["references"].to_pylist()
        self._before = {row["channel"]: row for row in past.tables["channels"].to_pylist()}
        self._again: set[str] = set()
        self._lost = False
        self._more = Counter[tuple[str, bytes]]()

    def judged(self) -> Onward:
        fresh = self._fresh()
        self._find_filled(fresh)
        new = self._mask(fresh, self._claims["channel"])
        claims, rows = self._claims.filter(new), self._sds.filter(new)
        findings = self._examined(claims) if len(claims) else {}
        blocks = {row["channel"]: row for row in findings.get(BLOCK, [])}
        missing = self._referring(rows, findings.get(MISSING, []))
        channels = self._channels(claims, blocks, findings)
        located = self._located([*self._references, *missing])
        self._find_hinted(missing)
        if self._lost:
            self._again |= self._hanging()
        return self._result(channels, located, findings)

    def _fresh(self) -> pa.Array:
        """Which SDS messages are new; channels in which others are gone go to ``again``."""
        channels = self._sds["channel"].to_pylist()
        keys = zip(channels, self._digests.to_pylist(), strict=True)
        old = pa.array([key in self._ids for key in keys], pa.bool_())
        there = held_in(self._sds.filter(old)) if len(old) else {}
        self._compare(there)
        return pc.invert(old)

    def _compare(self, there: Held) -> None:
        """Whether those that are known are what was there before."""
        before = self._past.hours
        changed = {key for key in {*self._hours, *before} if self._differs(key)}
        plain = {key for key in changed if key[0] is None and key in before}
        known = self._known_plain() if plain else {}
        for key in changed:
            channel = key[0]
            if (known if channel is None else there).get(key, NOTHING) == before.get(key, NOTHING):
                continue
            if channel is None:
                raise EverythingChangedError
            self._lost |= key in before
            self._again.add(channel)

    def _differs(self, key: tuple[str | None, int]) -> bool:
        return self._hours.get(key, NOTHING) != self._past.hours.get(key, NOTHING)

    def _known_plain(self) -> Held:
        words = self._plain["h0"]
        known = pa.array(self._past.plain(words), pa.int64())
        return held_in(self._plain.filter(pc.is_in(words, value_set=known)))

    def _find_filled(self, fresh: pa.Array) -> None:
        """Channels in which something is no longer missing, or was held as what is none of SDS."""
        lacked: dict[str, set[str]] = defaultdict(set)
        hinted: dict[int, set[str]] = defaultdict(set)
        for row in self._references:
            lacked[row["channel"]].add(row["parent"])
            if row["hint"] is not None:
                hinted[_word(row["hint"])].add(row["channel"])
        for word in set(self._plain["h0"].to_pylist()) & hinted.keys():
            self._again |= hinted[word]
        come = self._claims.filter(fresh)
        unread = {name for name, row in self._before.items() if row["unread"]}
        unsearched = set(self._faulty(UNSEARCHED))
        for channel, message_id in zip(*_lists(come, "channel", "message_id"), strict=True):
            if message_id in lacked.get(channel, ()) or channel in unread | unsearched:
                self._again.add(channel)

    def _faulty(self, kind: str) -> list[str]:
        faults = self._past.tables["faults"]
        found: list[str] = faults.filter(pc.equal(faults["kind"], kind))["channel"].to_pylist()
        return found

    def _hanging(self) -> set[str]:
        """Channels of which something is held elsewhere."""
        unread = {name for name, row in self._before.items() if row["unread"]}
        return unread | {row["channel"] for row in self._references if row["elsewhere"] is not None}

    def _mask(self, fresh: pa.Array, channels: pa.Array) -> pa.Array:
        again = pa.array(sorted(self._again), pa.string())
        return pc.and_(fresh, pc.invert(pc.is_in(channels, value_set=again)))

    def _examined(self, claims: pa.RecordBatch) -> dict[str, list[Row]]:
        """Findings by kind in new messages, given what is kept of their parents."""
        given = pa.concat_batches([claims, self._outside(claims)])
        found: dict[str, list[Row]] = {}
        for batch in examine(given, _KINDS):
            found.setdefault(batch["kind"][0].as_py(), []).extend(batch.to_pylist())
        return found

    def _outside(self, claims: pa.RecordBatch) -> pa.RecordBatch:
        """What is kept of parents, as rows that are known of another block."""
        known = [(*each, self._ids[key]) for each, key in self._edges_out(claims)]
        distinct = {(channel, parent): it for channel, _, parent, it in known}
        rows: list[Row] = [
            {
                "channel": channel,
                "block": 0,
                "message_id": parent,
                "own": False,
                "tainted": it.incomplete,
                "lamport": it.lamport,
                "ts": 0,
                "h0": 0,
                "parents": [],
            }
            for (channel, parent), it in distinct.items()
        ]
        return pa.RecordBatch.from_pylist(rows, claims.schema)

    def _edges_out(
        self, claims: pa.RecordBatch
    ) -> Iterable[tuple[tuple[str, str, str], tuple[str, bytes]]]:
        """(channel, child, parent) of references to what is kept, with the key of that."""
        for channel, child, parents in zip(
            *_lists(claims, "channel", "message_id", "parents"), strict=True
        ):
            for parent in parents or ():
                key = channel, self._named[parent or ""]
                if key in self._ids:
                    yield (channel, child, parent), key

    def _referring(self, rows: pa.RecordBatch, missing: Sequence[Row]) -> list[Row]:
        """References to parents that are missing, as `causal.missing.references_to` has them."""
        wanted = {(row["channel"], row["message_id"]) for row in missing}
        if not wanted:
            return []
        keys = zip(*_lists(rows, "channel", "message_id"), strict=True)
        places = [place for place, key in enumerate(keys) if key in wanted]
        children: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows.take(pa.array(places, pa.int64())).to_pylist():
            children[row["channel"], row["message_id"]].append(row)
        found: dict[tuple[Any, ...], Row] = {}
        for edge in missing:
            child, parent = (edge["channel"], edge["message_id"]), edge["other"]
            named = [
                (row, each["hint"])
                for row in children[child]
                for each in row["parents"]
                if each["id"] == parent
            ]
            for row, hint in named or [({}, None)]:
                good = hint if hint is not None and len(hint) == HASH_BYTES else None
                found[(*child, parent, row.get("hash"), good)] = {
                    "channel": child[0],
                    "parent": parent,
                    "hint": good,
                    "message_id": child[1],
                    **{name: row.get(name) for name in ("sender", "lamport", "ts", "hash")},
                    "elsewhere": None,
                }
        return list(found.values())

    def _channels(
        self,
        claims: pa.RecordBatch,
        blocks: Mapping[str, Row],
        findings: Mapping[str, Sequence[Row]],
    ) -> dict[str, Row]:
        """The channels as they are now; some may turn out to be such as are gone through again."""
        after = dict(self._before)
        first, names = self._first_edges(claims)
        cycles = Counter(name for name, _ in {(row["channel"], row["other"]) for row in
                                              findings.get(CYCLE, [])})  # fmt: skip
        claimants = Counter((row["channel"], row["message_id"]) for row in
                            findings.get(CLAIMED, []))  # fmt: skip
        crowded = {channel for (channel, _), count in claimants.items() if count > MAX_CLAIMANTS}
        lacking = self._newly_missing(findings.get(MISSING, []))
        low = self._between(claims)
        for channel, block in blocks.items():
            old = self._before.get(channel) or _nothing(channel)
            counts = dict(zip(COUNTS, block["counts"], strict=False))
            counts |= {"missing": lacking[channel], "cycles": cycles[channel]}
            counts["heads"] -= first[channel]
            counts["forks"] += names[channel]
            row = {**old, **{name: old[name] + counts[name] for name in _ADDED}}
            faulty = row["violations"] or channel in crowded
            large = row["messages"] + row["copies"] > _LARGE and faulty
            if large or channel in low or not _with_point(row, block):
                self._again.add(channel)
            after[channel] = row
        return after

    def _first_edges(self, claims: pa.RecordBatch) -> tuple[Counter[str], Counter[str]]:
        """By channel, how many IDs that are kept get their first child, and how many a second."""
        heads, forks = Counter[str](), Counter[str]()
        self._more = Counter(dict(self._edges_out(claims)).values())
        for key, count in self._more.items():
            before = self._ids[key].children
            heads[key[0]] += before == 0
            forks[key[0]] += before < 2 <= before + count
        return heads, forks

    def _newly_missing(self, missing: Sequence[Row]) -> Counter[str]:
        known = {(row["channel"], row["parent"]) for row in self._references}
        edges = {(row["channel"], row["other"]) for row in missing}
        return Counter(channel for channel, _ in edges - known)

    def _between(self, claims: pa.RecordBatch) -> set[str]:
        """Channels with a new message before what is incomplete and after their last point."""
        found = set()
        for channel, message_id, lamport in zip(
            *_lists(claims, "channel", "message_id", "lamport"), strict=True
        ):
            row = self._before.get(channel)
            if row is None or row["broken_message_id"] is None:
                continue
            key, point = _key(lamport, message_id), _point(row)
            if key < _broken(row) and (point is None or key > point):
                found.add(channel)
        return found

    def _located(self, references: Sequence[Row]) -> list[Row]:
        """References with the least channel that holds what they lack."""
        lacked: dict[bytes, set[str]] = defaultdict(set)
        texts = {row["parent"] for row in references}
        for parent in texts & self._named.keys():
            lacked[self._named[parent]].add(parent)
        holders: dict[str, set[str]] = defaultdict(set)
        for channel, digest in self._ids:
            for parent in lacked.get(digest, ()):
                holders[parent].add(channel)
        for channel, message_id in zip(*_lists(self._claims, "channel", "message_id"), strict=True):
            if message_id in texts:
                holders[message_id].add(channel)
        found = []
        for row in references:
            others = {*holders[row["parent"]], row["elsewhere"]} - {row["channel"], None}
            least = min(others, default=None)
            if self._lost and least in self._again:
                self._again.add(row["channel"])
            found.append({**row, "elsewhere": least})
        return found

    def _find_hinted(self, missing: Sequence[Row]) -> None:
        """Channels that lack something which is held as a message that is none of SDS."""
        hinted = {_word(row["hint"]): row["channel"] for row in missing if row["hint"] is not None}
        if not hinted:
            return
        every: dict[int, set[str]] = defaultdict(set)
        for row in missing:
            if row["hint"] is not None:
                every[_word(row["hint"])].add(row["channel"])
        here = set(self._plain["h0"].to_pylist())
        for word in self._past.plain(pa.array([*every], pa.int64())) | (here & every.keys()):
            self._again |= every[word]

    def _result(
        self, channels: Mapping[str, Row], references: Sequence[Row], findings: Mapping[str, Any]
    ) -> Onward:
        out = Onward(self._hours, self._again)
        faults = [row for kind in (VIOLATION, CYCLE) for row in findings.get(kind, [])]
        made = {
            "channels": [*channels.values()],
            "references": [_with_hour(row) for row in references],
            "faults": [*self._past.tables["faults"].to_pylist(), *faults],
            "conflicts": self._past.tables["conflicts"].to_pylist(),
        }
        for name, rows in made.items():
            out.tables[name] = pa.Table.from_pylist(self._kept(rows), SCHEMAS[name])
        out.claimed = pa.Table.from_pylist(self._kept(findings.get(CLAIMED, [])), ARROW_FINDINGS)
        out.ids = pa.concat_tables([self._new_ids(findings.get(NODES, [])), begun(self._again)])
        out.plain = pa.table([self._plain["h0"]], ["h0"])
        return out

    def _kept(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row["channel"] not in self._again]

    def _new_ids(self, nodes: Sequence[Row]) -> pa.Table:
        parts = [pa.ipc.read_record_batch(pa.py_buffer(row["data"]), KEPT) for row in nodes]
        new = marked(pa.Table.from_batches(parts, KEPT), NODE)
        again = pa.array(sorted(self._again), pa.string())
        new = new.filter(pc.invert(pc.is_in(new["channel"], value_set=again)))
        more = [
            dict(zip(KEPT.names, (*key, None, False, min(count, 2)), strict=True))
            for key, count in self._more.items()
            if key[0] not in self._again
        ]
        return pa.concat_tables([new, marked(pa.Table.from_pylist(more, KEPT), NAMED)])


def _lists(rows: pa.RecordBatch, *names: str) -> list[list[Any]]:
    return [rows[name].to_pylist() for name in names]


def _word(hint: bytes) -> int:
    return int.from_bytes(hint[:8], "little", signed=True)


def _key(lamport: int | None, message_id: str) -> Key:
    return (lamport or 0) % _CLOCKS, message_id


def _point(row: Row) -> Key | None:
    name = row["point_message_id"]
    return None if name is None else _key(row["point_lamport"], name)


def _broken(row: Row) -> Key:
    return _key(row["broken_lamport"], row["broken_message_id"])


def _nothing(channel: str) -> Row:
    empty = dict.fromkeys(SCHEMAS["channels"].names)
    return {**empty, **dict.fromkeys(_ADDED, 0), "channel": channel, "unread": False}


def _with_point(row: Row, block: Row) -> bool:
    """Have a channel's row tell its last complete point; whether that is known.

    New messages between the point and what is incomplete are not among those of ``block``.
    """
    point, was_broken = _point(row), row["broken_message_id"] is not None
    if block["other"] is not None:
        broken = _key(block["counts"][len(COUNTS)], block["other"])
        if not was_broken or broken < _broken(row):
            if point is not None and point >= broken:
                return False
            row["broken_message_id"] = block["other"]
            row["broken_lamport"] = block["counts"][len(COUNTS)]
            was_broken = False
    new = None if block["message_id"] is None else _key(block["lamport"], block["message_id"])
    if not was_broken and new is not None and (point is None or new > point):
        for name in ("message_id", "lamport", "ts"):
            row[f"point_{name}"] = block[name]
    return True


def _with_hour(row: Row) -> Row:
    ts = row["ts"]
    hour = None if ts is None else np.datetime64(ts // HOUR_NS * HOUR_NS // 1_000, "us").item()
    return {**row, "hour": hour}
