"""An audit that goes on from the last one: only channels that have changed are gone through.

What is found in a channel follows from its own messages, but for two things: whether a hint names a
message that is none of SDS, and whether another channel holds a missing ID. Both can only become so
by messages that are new, in days and channels that are looked at anyway; channels of which one is
so already are gone through every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.gone_through import GoneThrough, Range, Some
from store.pipeline.causal.missing import elsewhere, held_unread
from store.pipeline.causal.reported import Tables
from store.pipeline.causal.rounds import settled
from store.pipeline.causal.rows import CYCLE, UNSEARCHED, VIOLATION
from store.pipeline.contents import read_files
from store.pipeline.lake import LakeFile
from store.pipeline.limits import HOUR_NS
from store.pipeline.progress import Say
from store.pipeline.results.changes import changes_since
from store.pipeline.results.tables import Results, ResultTables
from store.pipeline.sides import LakeSide

_FAULTS: Final = (VIOLATION, CYCLE, UNSEARCHED)
_MISSED: Final = ["channel", "parent"]


class Again:
    """An audit of all of an archive; ``full``: of every channel."""

    def __init__(self, stack: ExitStack, side: LakeSide, say: Say, *, full: bool) -> None:
        self._stack = stack
        self._side = side
        self._say = say
        self._results = ResultTables(side.session, side.lake.path)
        self._past = None if full else self._results.read()
        self._changes = changes_since(side.session, side.lake, self._past)
        self._unread: DataFrame | None = None

    def tables(self) -> Tables:
        """What an audit of everything finds."""
        past, changes = self._past, self._changes
        whole = Range(self._side, say=self._say)
        if past is None or changes.channels is None:
            return self._gone_through(GoneThrough(self._stack, whole, everything=False))
        self._say(f"audit: {len(changes.channels):,} channels have changed since the last one")
        before = {name: rows.drop("unread", "hour") for name, rows in past.tables.items()}
        if not changes.channels:
            return _tables(before)
        names = pa.table({"channel": pa.array(changes.channels, pa.string())})
        changed = F.broadcast(self._side.session.createDataFrame(names))
        some = Some(changes.channels, self._files(past, changed))
        references = settled(before["references"])
        going = _Partly(
            self._stack, self._side, some, past=references, new=changes.files, say=self._say
        )
        found = self._gone_through(going)
        kept = {name: rows.join(changed, "channel", "anti") for name, rows in before.items()}
        # What other channels lacked may be held by one that has changed.
        others = references.join(changed, "channel", "anti").drop("elsewhere")
        located = others.join(elsewhere(others, going.claims), _MISSED, "left")
        return _tables(
            {
                "faults": found.findings.unionByName(kept["faults"]),
                "channels": found.channels.unionByName(kept["channels"]),
                "references": found.references.unionByName(located),
                "conflicts": found.conflicts.unionByName(kept["conflicts"]),
            }
        )

    def record(self, found: Tables) -> None:
        """Let the next audit go on from here.

        Raises:
            PipelineError: the results cannot be written.
        """
        if self._past is not None and not self._changes.days:
            return
        hour = f"timestamp_micros((ts - ts % {HOUR_NS}) div 1000)"
        tables = {
            "channels": self._with_unread(found.channels),
            "references": found.references.withColumn("hour", F.expr(hour)),
            "faults": found.findings.where(F.col("kind").isin(*_FAULTS)),
            "conflicts": found.conflicts,
        }
        days = None if self._past is None else self._changes.days
        self._results.write(tables, self._changes.hours, days)

    def _with_unread(self, channels: DataFrame) -> DataFrame:
        if self._unread is None:
            return channels.withColumn("unread", F.lit(False))
        marks = self._unread.select("channel").distinct().withColumn("mark", F.lit(True))
        marked = channels.join(marks, "channel", "left")
        return marked.withColumn("unread", F.coalesce("mark", F.lit(False))).drop("mark")

    def _gone_through(self, going: GoneThrough) -> Tables:
        found = going.tables()
        self._unread = going.unread
        return found

    def _files(self, past: Results, changed: DataFrame) -> list[LakeFile]:
        """The files of the days in which some channels have messages, or had."""
        hours = past.hours.unionByName(self._changes.hours).join(changed, "channel", "semi")
        rows = hours.select(F.unix_date("day").alias("day")).distinct().collect()
        return self._side.lake.files({row["day"] for row in rows})


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
        super().__init__(stack, Range(side, say=say), everything=False, some=some)
        self._side = side
        self._past = past
        self._new = new

    def elsewhere(self, references: DataFrame) -> DataFrame:
        """See `GoneThrough`."""
        here = elsewhere(references, self.claims)
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


def _tables(found: Mapping[str, DataFrame]) -> Tables:
    """Tables as by name, without what only matters to the next audit."""
    names = ("faults", "channels", "references", "conflicts")
    return Tables(*(settled(found[name]) for name in names))
