"""An audit that goes on from the last one: new messages are judged by what is kept of old ones.

Channels for which that is not enough (`store.pipeline.results.onward`) are gone through as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.causal.claims import claims_in
from store.pipeline.causal.conflicts import conflicting
from store.pipeline.causal.gone_through import CONTENT, GoneThrough, Range, Some
from store.pipeline.causal.missing import elsewhere, held_unread
from store.pipeline.causal.reported import Tables, counts_of
from store.pipeline.causal.rounds import settled
from store.pipeline.causal.rows import CYCLE, KEPT, NODES, UNSEARCHED, VIOLATION
from store.pipeline.columns import empty
from store.pipeline.contents import over_files, read_files
from store.pipeline.database import FOREVER
from store.pipeline.lake import LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.progress import Say
from store.pipeline.results import changes
from store.pipeline.results.kept import IDS, NODE, PLAIN, marked
from store.pipeline.results.onward import READ, EverythingChangedError, Onward, Past, go_on
from store.pipeline.results.tables import SCHEMAS, Results, ResultTables, Rows
from store.pipeline.sides import LakeSide
from store.pipeline.tasks import Batches
from store.pipeline.writing import day_text

MAX_NEW_MESSAGES: Final = 2_000_000
"""Messages of the days that have changed, and findings, which are judged in this process; where
there are more, everything is gone through by the workers."""

_FAULTS: Final = (VIOLATION, CYCLE, UNSEARCHED)
_MISSED: Final = ["channel", "parent"]
_NAMED: Final = ("ts", "channel", "message_id")


class Again:
    """An audit of all of an archive; ``full``: of every channel."""

    def __init__(self, stack: ExitStack, side: LakeSide, say: Say, *, full: bool) -> None:
        self._stack = stack
        self._side = side
        self._say = say
        self._results = ResultTables(side.session, side.lake.path)
        self._past = None if full else self._results.read()
        self._digests = dict(side.lake.digests())
        before = {} if self._past is None else self._past.days
        now = {day_text(day): digest for day, digest in self._digests.items()}
        changed = {day for day, digest in now.items() if before.get(day) != digest}
        self._days = changed | (before.keys() - now.keys())
        self._files = side.lake.files({day for day in self._digests if day_text(day) in changed})
        self._onward: Onward | None = None
        self._gone: Tables | None = None
        self._parts: dict[str, list[Rows]] = {}
        self._unread: DataFrame | None = None

    def tables(self, *, recorded: bool) -> Tables:
        """What an audit of everything finds; ``recorded``: `record` will be called."""
        past = self._past
        if past is not None and not self._days:
            few = past.rows <= MAX_NEW_MESSAGES
            rows = {name: [past.local(name) if few else past.table(name)] for name in SCHEMAS}
            return _tables(self._side.session, rows)
        self._onward = None if past is None else self._judged(past)
        if past is None or self._onward is None:
            self._past = None
            also = frozenset({NODES}) if recorded else frozenset[str]()
            whole = Range(self._side, say=self._say)
            self._gone = self._gone_through(GoneThrough(self._stack, whole, also=also))
            return self._gone
        self._say(f"audit: {len(self._onward.again):,} channels are gone through as a whole")
        self._parts = found = {name: [rows] for name, rows in self._onward.tables.items()}
        if len(self._onward.claimed):
            found["conflicts"].append(self._conflicts(self._onward.claimed))
        if self._onward.again:
            self._gone = self._partly(past, sorted(self._onward.again))
            faults = self._gone.findings.where(F.col("kind").isin(*_FAULTS)).drop("data")
            found["faults"].append(faults)
            found["channels"].append(settled(self._with_unread(self._gone.channels)))
            found["references"].append(_with_hour(self._gone.references))
            found["conflicts"].append(self._gone.conflicts)
        return _tables(self._side.session, found)

    def record(self, found: Tables) -> None:
        """Let the next audit go on from here.

        Raises:
            PipelineError: the results cannot be written.
        """
        if self._past is not None and not self._days:
            return
        session, onward = self._side.session, self._onward
        if self._past is None or onward is None:
            digests = {day_text(day): digest for day, digest in self._digests.items()}
            files = self._side.lake.files()
            tables: dict[str, Sequence[Rows]] = {
                "hours": [changes.hours_of(session, files, digests)] if files else [],
                "plain": [over_files(session, changes.plain_words, files, PLAIN)] if files else [],
                "ids": [_ids(found.findings)],
                "channels": [self._with_unread(found.channels)],
                "references": [_with_hour(found.references)],
                "faults": [found.findings.where(F.col("kind").isin(*_FAULTS))],
                "conflicts": [found.conflicts],
            }
            self._results.write(tables, None)
            return
        hours = changes.as_hours(onward.hours, self._digests)
        gone = [] if self._gone is None else [_ids(self._gone.findings)]
        assert onward.ids is not None
        assert onward.plain is not None
        more = {"hours": [hours], "ids": [onward.ids, *gone], "plain": [onward.plain]}
        self._results.write({**self._parts, **more}, self._days)

    def _judged(self, past: Results) -> Onward | None:
        """What new messages change; None: everything must be gone through."""
        new = sum(each.rows for each in self._files)
        if max(new, past.rows) > MAX_NEW_MESSAGES:
            self._say(f"audit: more than {MAX_NEW_MESSAGES:,} messages have changed days or faults")
            return None
        tables = {name: past.local(name) for name in SCHEMAS}
        before = changes.from_hours(past.hours(self._days))
        try:
            rows = changes.read(self._files, READ)
            return go_on(Past(tables, before, past.ids, past.plain), rows)
        except EverythingChangedError:
            return None

    def _partly(self, past: Results, channels: list[str]) -> Tables:
        """Go through some channels."""
        files = self._side.lake.files()
        some = Some(channels, files)
        going = _Partly(
            self._stack,
            self._side,
            some,
            past=settled(past.table("references")),
            new=self._files,
            say=self._say,
        )
        return self._gone_through(going)

    def _conflicts(self, claimed: pa.Table) -> DataFrame:
        session = self._side.session
        days = {ts // DAY_NS for ts in claimed["ts"].to_pylist()}
        files = [each for each in self._files if each.day in days]
        messages = read_files(session, files, CONTENT)
        return settled(conflicting(session.createDataFrame(claimed), messages))

    def _with_unread(self, channels: DataFrame) -> DataFrame:
        if self._unread is None:
            return channels.withColumn("unread", F.lit(False))
        marks = self._unread.select("channel").distinct().withColumn("mark", F.lit(True))
        marked_ = channels.join(marks, "channel", "left")
        return marked_.withColumn("unread", F.coalesce("mark", F.lit(False))).drop("mark")

    def _gone_through(self, going: GoneThrough) -> Tables:
        found = going.tables()
        self._unread = going.unread
        return found


class _Partly(GoneThrough):
    """Some channels; what was looked for and not found before is looked for in what is new."""

    def __init__(
        self,
        stack: ExitStack,
        side: LakeSide,
        some: Some,
        *,
        past: DataFrame,
        new: Sequence[LakeFile],
        say: Say,
    ) -> None:
        super().__init__(stack, Range(side, say=say), also=frozenset({NODES}), some=some)
        self._side = side
        self._past = past
        self._new = new

    def elsewhere(self, references: DataFrame) -> DataFrame:
        """See `GoneThrough`."""
        new = claims_in(self._side.session, self._new, _NAMED, (0, FOREVER))
        mine = self.claims.select(*_NAMED)
        here = elsewhere(references, mine.unionByName(new))
        known = self._past.where("elsewhere is null").select(*_MISSED)
        fresh = settled(references.join(known, _MISSED, "anti"))
        if fresh.isEmpty():
            return here
        both = here.unionByName(super().elsewhere(fresh))
        return both.groupBy(*_MISSED).agg(F.min("elsewhere").alias("elsewhere"))

    def unread_parents(self, references: DataFrame) -> DataFrame:
        """See `GoneThrough`."""
        hinted = [*_MISSED, "hint"]
        known = self._past.where("hint is not null").select(*hinted)
        names = ("ts", "hash", "channel")
        messages = read_files(self._side.session, self._new, names)
        found = held_unread(references.join(known, hinted, "semi"), messages)
        fresh = settled(references.where("hint is not null").join(known, hinted, "anti"))
        if fresh.isEmpty():
            return found
        return found.unionByName(super().unread_parents(fresh)).distinct()


def _ids(findings: DataFrame) -> DataFrame:
    """The IDs of findings, as `IDS`."""
    packed = findings.where(F.col("kind") == NODES).select("data")
    return packed.mapInArrow(_unpacked, from_arrow_schema(IDS))


def _unpacked(batches: Batches) -> Batches:
    for batch in batches:
        for data in batch["data"]:
            rows = pa.ipc.read_record_batch(data.as_buffer(), KEPT)
            yield from marked(pa.Table.from_batches([rows]), NODE).to_batches()


def _with_hour(references: DataFrame) -> DataFrame:
    hour = f"timestamp_micros((ts - ts % {HOUR_NS}) div 1000)"
    return references.withColumn("hour", F.expr(hour))


def _tables(session: SparkSession, found: Mapping[str, Sequence[Rows]]) -> Tables:
    """All rows of each of `SCHEMAS`; those of this process become rows of Spark."""
    made = {name: _joined(session, name, parts) for name, parts in found.items()}
    faults, channels = made["faults"], made["channels"]
    counts = counts_of(faults, channels)
    return Tables(faults, channels, made["references"], made["conflicts"], counts)


def _joined(session: SparkSession, name: str, parts: Sequence[Rows]) -> DataFrame:
    schema = SCHEMAS[name]
    frames = [
        session.createDataFrame(each) if isinstance(each, pa.Table) else each.select(*schema.names)
        for each in parts
        if not isinstance(each, pa.Table) or len(each)
    ]
    if not frames:
        return empty(session, schema)
    joined, *others = frames
    for each in others:
        joined = joined.unionByName(each)
    return settled(joined) if len(frames) > 1 else joined
