"""Statements of store nodes about how complete their answers are, and what follows from them.

A node states with the last page of an answer over which time other stores were found to store
nothing that is not in it. A scan with such a statement, of which every message was received, brings
the participant in step over that time: it has what the node and these stores stored as of their
comparison. Messages from the feed rest on no such statement, and do not count here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storenode.sds.aio.limits import MAX_COVERING_STORES, MAX_REASON_CHARS
from storenode.sds.aio.transport import TransportError
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link

_CONFIRMED = frozenset({AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL})


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """A node's statement of how complete it is.

    It stored what the stores ``store_ids`` stored as of ``as_of_ns``, from ``from_ns`` to
    ``until_ns`` (nanoseconds, exclusive); ``until_ns`` 0: of no time. ``keyed``: compared by
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
    """The time over which everything of the channel has been received and saved.

    That is what ``node`` and the stores ``store_ids`` stored as of ``as_of_ns`` with timestamps
    from ``from_ns`` to ``until_ns`` (exclusive). ``until_ns`` None: that is not certain of any
    time. ``keyed``: as in `NodeCoverage`. ``reason``: why, or why not of all the time.
    """

    until_ns: int | None
    reason: str = ""
    from_ns: int = 0
    as_of_ns: int = 0
    store_ids: tuple[str, ...] = ()
    keyed: bool = False
    node: str | None = None


async def by_completeness(links: Sequence[Link]) -> list[tuple[Link, NodeCoverage]]:
    """Query all links at once, and return the most complete first, else in their order.

    First those whose statements reach furthest, then those without one, then those that are known
    to lack messages, then those that do not answer.
    """
    found = await asyncio.gather(*map(_coverage, links))
    return sorted(zip(links, found, strict=True), key=lambda pair: _rank(pair[1]))


async def in_step(participant: Participant, since_ns: int) -> InStep:
    """Scan the most complete node from a time on, and return what is certain then."""
    (link, best), *_ = await by_completeness(participant.links)
    if best.until_ns:
        try:
            best = await _scan(participant, link, best.node, since_ns)
        except TransportError as error:
            best = NodeCoverage(best.node, reason=error.sentence)
    return InStep(
        best.until_ns or None,
        best.reason,
        best.from_ns,
        best.as_of_ns,
        best.store_ids,
        best.keyed,
        best.node,
    )


async def _scan(participant: Participant, link: Link, node: str, since_ns: int) -> NodeCoverage:
    statements: list[AnswerCoverage] = []
    dropped = link.dropped
    async with aclosing(link.scan_with_coverage(since_ns, statements.append)) as pages:
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
    return _read(node, statements[-1] if statements else None)


async def _coverage(link: Link) -> NodeCoverage:
    try:
        return _read(link.name, await link.coverage())
    except TransportError as error:
        return NodeCoverage(link.name, reason=error.sentence, answered=False)


def _rank(coverage: NodeCoverage) -> tuple[bool, bool, int, int]:
    return not coverage.answered, coverage.lacks, -coverage.until_ns, coverage.from_ns


def _read(node: str, statement: AnswerCoverage | None) -> NodeCoverage:
    if statement is None:
        return NodeCoverage(node, reason=f"{node} does not say how complete it is.")
    reason = statement.reason[:MAX_REASON_CHARS]
    if statement.state not in _CONFIRMED or statement.complete_from >= statement.complete_until:
        lacks = statement.state == AnswerCoverage.INCOMPLETE
        return NodeCoverage(node, reason=reason or f"{node} gives no reason.", lacks=lacks)
    return NodeCoverage(
        node,
        statement.complete_from,
        statement.complete_until,
        statement.compared_at,
        tuple(statement.store_ids[:MAX_COVERING_STORES]),
        statement.keyed,
        reason,
    )
