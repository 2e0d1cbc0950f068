"""Rules for what stores hold at the end of a run.

- *lost*: every node holds what was acknowledged, unless nothing promises it any more
  (`History.may_be_lost`), or the node's retention dropped it (`History.may_go_ns`).
- *unknown*: whatever a scan, a lookup by hash or a follower gets was published.
- *altered*: it is what was published, field by field, under its own hash.
- *twice*: none of the three gets a message more than once, unless it is ephemeral and sent again.
- *ephemeral*: no store keeps an ephemeral message.
- *order*: a scan is in the order of time and hash.
- *kept*: what retention had to drop is in no scan.
- *by hash*: a lookup by hash finds what a scan gives, and nothing else.
- *follow*: a follower that resumed at its cursors received everything.
- *unequal*: what any node serves, every node serves, except for what retention dropped.
- *confirms*: no message has more confirmations than there are other stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.checker.history import History, Violation, list_violations


@dataclass(frozen=True, slots=True)
class Served:
    """A message that a node served under the hash ``claimed``; ``computed`` is its real one."""

    claimed: bytes
    computed: bytes
    fingerprint: bytes
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The messages of a node at the end of a run, as its clients get them.

    Attributes:
        node: the node's name.
        store: the life of its database.
        scanned: what `Scan` gave, in order.
        by_hash: what `Query` gave for the hashes of all published messages.
        followed: what its follower received since the last start from the beginning.
    """

    node: str
    store: str
    scanned: Sequence[Served]
    by_hash: Sequence[Served]
    followed: Sequence[Served]


_Case = tuple[str, str, Collection[object]]
"""A rule, a sentence about the cases that break it, and these cases."""


def check_stores(history: History, holdings: Sequence[Holding]) -> list[Violation]:
    """Return all violations of the rules above."""
    times = {each.claimed: each.timestamp_ns for holding in holdings for each in holding.scanned}
    others = len(holdings) - 1
    acks = history.acks.items()
    too_many = [digest for digest, found in acks if any(ack.confirms > others for ack in found)]
    text = f"messages have more confirmations than {others} stores"
    cases: list[_Case] = [("confirms", text, too_many)]
    for each in holdings:
        cases += _find_missing(history, each, times)
        cases += _find_altered(history, each)
        cases += _find_differing(history, each)
    return [violation for case in cases for violation in list_violations(*case)]


def _hashes(served: Iterable[Served]) -> set[bytes]:
    return {message.claimed for message in served}


def _ephemeral(history: History) -> set[bytes]:
    return {digest for digest, message in history.published.items() if message.ephemeral}


def _find_missing(
    history: History, holding: Holding, anywhere: Mapping[bytes, int]
) -> Iterator[_Case]:
    """Find what a node lacks; ``anywhere``: the times of what any node holds."""
    node, acked, may_go_ns = holding.node, history.acks.keys(), history.may_go_ns(holding.store)
    times = {**anywhere, **{digest: history.published[digest].timestamp_ns for digest in acked}}
    lacking = {each for each in times.keys() - _hashes(holding.scanned) if times[each] >= may_go_ns}
    elsewhere = lacking & anywhere.keys() & acked
    nowhere = {each for each in lacking - anywhere.keys() if not history.may_be_lost(each)}
    yield "lost", f"acknowledged messages are at no node, nor at {node}", nowhere
    yield "lost", f"acknowledged messages of other nodes are missing at {node}", elsewhere
    text = f"unacknowledged messages that others serve are missing at {node}"
    yield "unequal", text, lacking - acked


def _find_altered(history: History, holding: Holding) -> Iterator[_Case]:
    for reader, served in (
        ("scan", holding.scanned),
        ("look-up", holding.by_hash),
        ("follower", holding.followed),
    ):
        where = f"in a {reader} of {holding.node}"
        times = Counter(message.claimed for message in served)
        unknown = times.keys() - history.published.keys()
        altered = {
            message.claimed
            for message in served
            if message.claimed not in unknown
            and (message.computed, message.fingerprint)
            != (message.claimed, history.published[message.claimed].fingerprint)
        }
        twice = {digest for digest, count in times.items() if count > 1} - _ephemeral(history)
        yield "unknown", f"messages {where} were never published", unknown
        yield "altered", f"messages {where} are not as published", altered
        yield "twice", f"messages come more than once {where}", twice


def _find_differing(history: History, holding: Holding) -> Iterator[_Case]:
    node, stored = holding.node, _hashes(holding.scanned)
    must_go_ns = history.must_go_ns(holding.store)
    kept = [each.claimed for each in holding.scanned if each.timestamp_ns < must_go_ns]
    order = [(message.timestamp_ns, message.claimed) for message in holding.scanned]
    misplaced = [later for earlier, later in pairwise(order) if later < earlier]
    differing = stored ^ _hashes(holding.by_hash)
    yield "ephemeral", f"ephemeral messages are kept by {node}", stored & _ephemeral(history)
    yield "order", f"messages come out of order in a scan of {node}", misplaced
    yield "kept", f"messages that {node} serves should have been dropped", kept
    yield "by hash", f"hashes of {node} differ between look-up and scan", differing
    missed = stored - _hashes(holding.followed)
    yield "follow", f"messages did not reach the follower of {node}", missed
