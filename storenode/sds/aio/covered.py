"""Until when a participant is in step, by what store nodes say of how complete their answers are.

A node says with the last page of an answer over which time other stores were found to hold nothing
that is not in it. A scan that says so, and of which every message was taken, brings the participant
in step over that time: it has what the node and these stores held as of their comparison. What the
feed brought rests on no such statement, and counts for nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from storenode.sds.aio.limits import MAX_COVERING_STORES, MAX_REASON_CHARS
from storenode.sds.aio.transport import Fetched, TransportError
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link

_CONFIRMED = frozenset({AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL})


@runtime_checkable
class TellingLink(Protocol):
    """A link whose answers can say how complete they are; methods may raise `TransportError`."""

    @property
    def dropped(self) -> int:
        """Messages that were not taken for those of the channel."""

    async def coverage(self) -> AnswerCoverage | None:
        """How complete the node is over all the time that it keeps; None: it cannot tell."""

    def scan_telling(
        self, since_ns: int, tell: Callable[[AnswerCoverage], None]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """As `Link.scan`; ``tell`` is given how complete it was, if the node can tell."""


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """How complete a node says that it is.

    It held what the stores ``store_ids`` held as of ``as_of_ns``, from ``from_ns`` to ``until_ns``
    (nanoseconds, exclusive); ``until_ns`` 0: it cannot say so of any time. ``keyed``: compared by
    keyed digests, else by XOR, which a publisher can forge. ``reason``: why not of all the time.
    ``lacks``: it is known to lack messages. ``answered``: the node was reached.
    """

    node: str
    from_ns: int = 0
    until_ns: int = 0
    as_of_ns: int = 0
    store_ids: tuple[str, ...] = ()
    keyed: bool = False
    reason: str = ""
    lacks: bool = False
    answered: bool = True


@dataclass(frozen=True, slots=True)
class InStep:
    """Everything that ``node`` and the stores ``store_ids`` held as of ``as_of_ns`` of the channel,
    with timestamps from ``from_ns`` to ``until_ns`` (exclusive), has been taken over and saved.

    ``until_ns`` None: that is not certain of any time. ``keyed``: as in `NodeCoverage`.
    ``reason``: why, or why not of all the time.
    """

    until_ns: int | None
    reason: str = ""
    from_ns: int = 0
    as_of_ns: int = 0
    store_ids: tuple[str, ...] = ()
    keyed: bool = False
    node: str | None = None


async def by_completeness(links: Sequence[Link]) -> list[tuple[Link, NodeCoverage]]:
    """Ask all links at once; the most complete first, else in their order.

    First those whose statements reach furthest, then those that nothing is known of, then those
    that are known to lack messages, then those that do not answer.
    """
    told = await asyncio.gather(*map(_coverage, links))
    return sorted(zip(links, told, strict=True), key=lambda pair: _place(pair[1]))


async def in_step(participant: Participant, since_ns: int) -> InStep:
    """Scan the most complete node from a time on, and say what is certain then."""
    (link, best), *_ = await by_completeness(participant.links)
    if best.until_ns and isinstance(link, TellingLink):
        try:
            best = await _taken_over(participant, link, best.node, since_ns)
        except TransportError as error:
            best = NodeCoverage(best.node, reason=error.sentence)
    if not best.until_ns:
        return InStep(None, best.reason, node=best.node)
    return InStep(
        best.until_ns,
        best.reason,
        best.from_ns,
        best.as_of_ns,
        best.store_ids,
        best.keyed,
        best.node,
    )


async def _taken_over(
    participant: Participant, link: TellingLink, node: str, since_ns: int
) -> NodeCoverage:
    told: list[AnswerCoverage] = []
    dropped = link.dropped
    async with aclosing(link.scan_telling(since_ns, told.append)) as pages:
        async for messages in pages:
            if await participant.take(messages) is not None:
                raise TransportError("There is no room for messages that wait for missing ones.")
    await participant.saver.saved()
    if link.dropped != dropped:
        raise TransportError(f"The node at {node} gave messages that are not the channel's.")
    incoming = participant.core.incoming
    if incoming.wants or incoming.waiting:
        missing = max(len(incoming.wants), 1)
        raise TransportError(f"Missing are {missing:,} or more messages that others name.")
    return _read(node, told[-1] if told else None)


async def _coverage(link: Link) -> NodeCoverage:
    if not isinstance(link, TellingLink):
        return _read(link.name, None)
    try:
        return _read(link.name, await link.coverage())
    except TransportError as error:
        return NodeCoverage(link.name, reason=error.sentence, answered=False)


def _place(told: NodeCoverage) -> tuple[bool, bool, int, int]:
    return not told.answered, told.lacks, -told.until_ns, told.from_ns


def _read(node: str, told: AnswerCoverage | None) -> NodeCoverage:
    if told is None:
        return NodeCoverage(node, reason=f"{node} does not say how complete it is.")
    reason = told.reason[:MAX_REASON_CHARS]
    if told.state not in _CONFIRMED or told.complete_from >= told.complete_until:
        lacks = told.state == AnswerCoverage.INCOMPLETE
        return NodeCoverage(node, reason=reason or f"{node} gives no reason.", lacks=lacks)
    return NodeCoverage(
        node,
        told.complete_from,
        told.complete_until,
        told.compared_at,
        tuple(told.store_ids[:MAX_COVERING_STORES]),
        told.keyed,
        reason,
    )
