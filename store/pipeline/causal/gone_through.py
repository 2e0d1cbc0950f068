"""A history gone through for causal gaps: everything that an audit says is made of these tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.audited import audited, channels_of
from store.pipeline.causal.claims import Claims, claims_in
from store.pipeline.causal.conflicts import conflicting
from store.pipeline.causal.missing import elsewhere, held_outside, held_unread, references_to
from store.pipeline.causal.reported import CONFLICTS, REFERENCES, Tables, counts_of
from store.pipeline.causal.rounds import settled
from store.pipeline.causal.rows import (
    BLOCK,
    CLAIMED,
    CLAIMS,
    CYCLE,
    HEAD,
    INCOMPLETE,
    MISSING,
    ORPHAN,
    VIOLATION,
    Kinds,
)
from store.pipeline.columns import empty
from store.pipeline.database import FOREVER
from store.pipeline.lake import LakeFile
from store.pipeline.progress import Say, silent
from store.pipeline.sides import LakeSide, Side

_READ: Final = (*CLAIMS, "sender", "hash")
_NAMED: Final = ("ts", "channel", "message_id")
_OUTSIDE: Final = ("ts", "channel", "message_id", "lamport")
CONTENT: Final = ("ts", "h0", "hash", "payload")
LOOKED_FOR: Final = frozenset({BLOCK, MISSING, VIOLATION, CYCLE, CLAIMED, ORPHAN})
"""The kinds of findings that every audit looks for."""

WRITTEN: Final = frozenset({INCOMPLETE, HEAD})
"""Those that are only written out."""


@dataclass(frozen=True)
class Range:
    """A range of a side, in nanoseconds, the end exclusive."""

    side: Side
    low_ns: int = 0
    high_ns: int = FOREVER
    say: Say = silent


@dataclass(frozen=True)
class Some:
    """Some channels of an archive, and the files that their messages are in."""

    channels: Sequence[str]
    files: Sequence[LakeFile]


class GoneThrough:
    """One range of a history, or ``some`` channels of it.

    ``also``: kinds of findings besides those that every audit looks for.
    """

    def __init__(
        self,
        stack: ExitStack,
        within: Range,
        *,
        also: Kinds = frozenset(),
        some: Some | None = None,
    ) -> None:
        self._within = within
        bounds = within.low_ns, within.high_ns
        files, channels = (None, None) if some is None else (some.files, some.channels)
        if isinstance(within.side, LakeSide):
            files = within.side.files(*bounds) if files is None else files
            self.claims = claims_in(within.side.session, files, _READ, bounds, channels)
        else:
            claims = within.side.messages(_READ, *bounds).where("channel is not null")
            # It is gone through several times, and a database should be read once.
            self.claims = claims.persist(StorageLevel.DISK_ONLY)
            stack.callback(self.claims.unpersist)
        self.unread: DataFrame | None = None
        """Parents that are held as messages which are none of SDS."""

        self._read = Claims(self.claims, files, *bounds, channels)
        self._kinds: Kinds = LOOKED_FOR | also

    def tables(self) -> Tables:
        """Go through everything."""
        found = self._found(None)
        if found.counts["missing"]:
            found = self._located(found)
        if found.counts["copies"]:
            found = replace(found, conflicts=self._conflicts(found.findings))
        return found

    def _found(self, outside: DataFrame | None) -> Tables:
        """What is found without a look at what may be held elsewhere, nor at contents."""
        findings = settled(audited(self._read, self._kinds, outside, self._within.say))
        channels, session = settled(channels_of(findings)), findings.sparkSession
        return Tables(
            findings,
            channels,
            empty(session, REFERENCES),
            empty(session, CONFLICTS),
            counts_of(findings, channels),
        )

    def _located(self, found: Tables) -> Tables:
        """The same without parents that are held elsewhere in time, and references to the rest."""
        references = self._references(found.findings)
        outside = self._outside(references)
        if outside is not None and not (outside := settled(outside)).isEmpty():
            found = self._found(outside)
            references = self._references(found.findings)
        located = references.join(self.elsewhere(references), ["channel", "parent"], "left")
        return replace(found, references=settled(located))

    def elsewhere(self, references: DataFrame) -> DataFrame:
        """See `causal.missing.elsewhere`."""
        side = self._within.side
        if not isinstance(side, LakeSide):
            return elsewhere(references, self.claims)
        bounds = self._within.low_ns, self._within.high_ns
        files = side.files(*bounds)
        return elsewhere(references, claims_in(side.session, files, _NAMED, bounds))

    def unread_parents(self, references: DataFrame) -> DataFrame:
        """See `causal.missing.held_unread`; the hints of ``references`` may be null."""
        messages = self._within.side.messages(("ts", "hash", "channel"), 0, FOREVER)
        return held_unread(references, messages)

    def _references(self, findings: DataFrame) -> DataFrame:
        missing = findings.where(F.col("kind") == MISSING)
        return settled(references_to(missing, self.claims))

    def _outside(self, references: DataFrame) -> DataFrame | None:
        """What is missing in the range and held all the same; None: nothing can be."""
        found: list[DataFrame] = []
        if not references.where(F.col("hint").isNotNull()).isEmpty():
            self.unread = settled(self.unread_parents(references))
            found.append(self.unread)
        low_ns, high_ns = self._within.low_ns, self._within.high_ns
        for start_ns, end_ns in ((0, low_ns), (high_ns, FOREVER)):
            if start_ns < end_ns:
                claims = self._within.side.messages(_OUTSIDE, start_ns, end_ns)
                found.append(held_outside(references, claims))
        return reduce(DataFrame.unionByName, found) if found else None

    def _conflicts(self, findings: DataFrame) -> DataFrame:
        """Contents are read of the time only in which IDs were claimed several times."""
        claimed = findings.where(F.col("kind") == CLAIMED)
        first_ns, last_ns = claimed.agg(F.min("ts"), F.max("ts")).collect()[0]
        messages = self._within.side.messages(CONTENT, first_ns, last_ns + 1)
        return settled(conflicting(claimed, messages))
