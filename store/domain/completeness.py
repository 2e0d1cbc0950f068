"""How complete an answer is, as far as other stores know: what ``GetCoverage`` tells, in short.

Statements are read before the first message of the answer. Whatever is stored meanwhile makes the
answer more complete; what is lost or dropped meanwhile is looked for after the last message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from store.domain.coverage import (
    CoverageState,
    CoverageStep,
    Run,
    Span,
    Statement,
    StoreCoverage,
    covered,
    longest_run,
)
from store.domain.hub import Place

_LOST: Final = "this store lost commits while the answer was read: ask again"
_DROPPED: Final = "messages before the horizon of this store may have been dropped"
_DIFFERS: Final = "this store lacked messages of this time that the named stores held"
_BY_XOR: Final = "other stores were compared by XOR only, which publishers can forge"
_UNKNOWN: Final = "no comparison with another store still holds for this time"
_PARTLY: Final = "no comparison with another store still holds for the rest of this time"


class AnswerState(StrEnum):
    """What is known about an answer."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    INCOMPLETE = "incomplete"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class AnswerCoverage:
    """How complete an answer about ``span`` is.

    COMPLETE or PARTIAL: each message from ``from_ns`` to ``until_ns`` that one of ``store_ids``
    held at ``compared_ns`` was held when the answer was read. INCOMPLETE: they held messages that
    were lacking here at ``compared_ns``. ``reason``: one sentence, empty for COMPLETE.
    """

    span: Span
    state: AnswerState
    reason: str = ""
    store_ids: tuple[str, ...] = ()
    compared_ns: int = 0
    from_ns: int = 0
    until_ns: int = 0
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of other stores at one moment.

    ``stated``: statements by store, ascending by their starts. ``held``: by store, count and XOR of
    the spans of its statements, as they were after the statements had been read. ``places``:
    the newest commits that ``held`` has seen, at least one.
    """

    stated: Mapping[str, Sequence[Statement]]
    held: Mapping[str, Mapping[Span, tuple[int, bytes]]]
    places: Sequence[Place]

    def of(self, span: Span) -> list[StoreCoverage]:
        """What is known of a span, by store."""
        return [
            covered(span, store, self.stated[store], self.held[store])
            for store in sorted(self.stated)
        ]


class CoverageReads(Protocol):
    """The reads of ``GetCoverage``, and of answers that say how complete they are."""

    async def steps(self, bounds: Sequence[Span]) -> list[CoverageStep]:
        """Return what is known about ascending, disjoint spans.

        Raises:
            StoreUnavailable, StoreBusy: The database does not serve.
        """

    async def known(self, start_ns: int, end_ns: int) -> Known:
        """What is known of a range now.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """

    async def lost_since(self, places: Sequence[Place]) -> tuple[bool, int]:
        """Whether one of some commits is lost, and the horizon now; raises `StoreUnavailable`."""


def answered(span: Span, known: Known, horizon_ns: int, *, lost: bool) -> AnswerCoverage:
    """What is to be said of an answer about a range that is not empty.

    ``horizon_ns`` and ``lost``: as they were after the last message had been read.
    """
    start_ns, end_ns = span
    from_ns = max(start_ns, horizon_ns)
    if lost or from_ns >= end_ns:
        return AnswerCoverage(span, AnswerState.UNCONFIRMED, _LOST if lost else _DROPPED)
    lacking = [
        each
        for each in known.of((from_ns, end_ns))
        if each.state is CoverageState.DIFFERS and each.missing_here
    ]
    if lacking:
        return AnswerCoverage(
            span,
            AnswerState.INCOMPLETE,
            _DIFFERS,
            tuple(each.store_id for each in lacking),
            min(each.compared_ns for each in lacking),
            keyed=all(each.keyed for each in lacking),
        )
    return _confirmed(span, from_ns, known)


def _confirmed(span: Span, from_ns: int, known: Known) -> AnswerCoverage:
    runs: dict[str, Run] = {}
    for store, stated in known.stated.items():
        summed = [each for each in stated if each.keyed]
        run = longest_run((from_ns, span[1]), summed, known.held[store])
        if run is not None:
            runs[store] = run
    if not runs:
        by_xor = any(not each.keyed for stated in known.stated.values() for each in stated)
        reason = _BY_XOR if by_xor else _UNKNOWN
        return AnswerCoverage(span, AnswerState.UNCONFIRMED, reason)
    longest = max(runs.values(), key=lambda run: (run.end_ns - run.start_ns, run.end_ns))
    agreeing = {
        store: run
        for store, run in runs.items()
        if (run.start_ns, run.end_ns) == (longest.start_ns, longest.end_ns)
    }
    whole = (longest.start_ns, longest.end_ns) == span
    dropped = longest.start_ns == from_ns > span[0] and longest.end_ns == span[1]
    return AnswerCoverage(
        span,
        AnswerState.COMPLETE if whole else AnswerState.PARTIAL,
        "" if whole else (_DROPPED if dropped else _PARTLY),
        tuple(sorted(agreeing)),
        min(run.compared_ns for run in agreeing.values()),
        longest.start_ns,
        longest.end_ns,
        keyed=True,
    )
