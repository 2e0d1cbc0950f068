"""Rules for what stores hold at the end of a run.

- *lost*: every node holds what was acknowledged, unless nothing promises it any more
  (`History.may_be_lost`), or the node's retention dropped it (`History.may_go_ns`).
- *unknown*: whatever a scan, a look-up by hash or a follower gets was published.
- *altered*: it is what was published, field by field, under its own hash.
- *twice*: none of the three gets a message more than once, unless it is ephemeral and sent again.
- *ephemeral*: no store keeps an ephemeral message.
- *order*: a scan is in the order of time and hash.
- *kept*: what retention had to drop is in no scan.
- *by hash*: a look-up by hash finds what a scan gives, and nothing else.
- *follow*: a follower that resumed at its cursors received everything.
- *unequal*: what any node serves, every node serves, except for what retention dropped.
- *confirms*: no message has more confirmations than there are other stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


def check_stores(history: History, holdings: Sequence[Holding]) -> list[Violation]:
    """Return all violations of the rules above."""
    stored = {each.node: _hashes(each.scanned) for each in holdings}
    found = _check_confirms(history, len(holdings) - 1)
    for each in holdings:
        found += _check_lost(history, each, stored)
        for reader in ("scan", "look-up", "follower"):
            found += _check_served(history, each, reader)
        found += _check_reads(history, each)
    return found + _check_equal(history, holdings, stored)


def _hashes(served: Iterable[Served]) -> set[bytes]:
    return {message.claimed for message in served}


def _ephemeral(history: History) -> set[bytes]:
    return {digest for digest, message in history.published.items() if message.ephemeral}


def _check_lost(
    history: History, holding: Holding, stored: Mapping[str, set[bytes]]
) -> list[Violation]:
    anywhere = set[bytes]().union(*stored.values())
    may_go_ns = history.may_go_ns(holding.store)
    missing = {
        digest
        for digest in history.acks.keys() - stored[holding.node]
        if history.published[digest].timestamp_ns >= may_go_ns
        and (digest in anywhere or not history.may_be_lost(digest))
    }
    nowhere, elsewhere = missing - anywhere, missing & anywhere
    return [
        *list_violations(
            "lost", f"acknowledged messages are at no node, nor at {holding.node}", nowhere
        ),
        *list_violations(
            "lost", f"acknowledged messages of other nodes are missing at {holding.node}", elsewhere
        ),
    ]


def _check_served(history: History, holding: Holding, reader: str) -> list[Violation]:
    served = {
        "scan": holding.scanned,
        "look-up": holding.by_hash,
        "follower": holding.followed,
    }[reader]
    times = Counter(message.claimed for message in served)
    unknown = times.keys() - history.published.keys()
    altered = {
        message.claimed
        for message in served
        if message.claimed not in unknown
        and (
            message.computed != message.claimed
            or message.fingerprint != history.published[message.claimed].fingerprint
        )
    }
    twice = {digest for digest, count in times.items() if count > 1} - _ephemeral(history)
    where = f"in a {reader} of {holding.node}"
    return [
        *list_violations("unknown", f"messages {where} were never published", unknown),
        *list_violations("altered", f"messages {where} are not as published", altered),
        *list_violations("twice", f"messages come more than once {where}", twice),
    ]


def _check_reads(history: History, holding: Holding) -> list[Violation]:
    node, stored = holding.node, _hashes(holding.scanned)
    must_go_ns = history.must_go_ns(holding.store)
    kept = [each.claimed for each in holding.scanned if each.timestamp_ns < must_go_ns]
    order = [(message.timestamp_ns, message.claimed) for message in holding.scanned]
    misplaced = [later for earlier, later in pairwise(order) if later < earlier]
    differing = stored.symmetric_difference(_hashes(holding.by_hash))
    missed = stored - _hashes(holding.followed)
    passing = stored & _ephemeral(history)
    return [
        *list_violations("ephemeral", f"ephemeral messages are kept by {node}", passing),
        *list_violations("order", f"messages come out of order in a scan of {node}", misplaced),
        *list_violations("kept", f"messages that {node} serves should have been dropped", kept),
        *list_violations("by hash", f"hashes of {node} differ between look-up and scan", differing),
        *list_violations("follow", f"messages did not reach the follower of {node}", missed),
    ]


def _check_equal(
    history: History, holdings: Sequence[Holding], stored: Mapping[str, set[bytes]]
) -> list[Violation]:
    times = {message.claimed: message.timestamp_ns for each in holdings for message in each.scanned}
    found: list[Violation] = []
    for each in holdings:
        may_go_ns = history.may_go_ns(each.store)
        lacking = {
            digest
            for digest in times.keys() - stored[each.node] - history.acks.keys()
            if times[digest] >= may_go_ns
        }
        text = f"unacknowledged messages that others serve are missing at {each.node}"
        found += list_violations("unequal", text, lacking)
    return found


def _check_confirms(history: History, others: int) -> list[Violation]:
    too_many = [
        digest
        for digest, acks in history.acks.items()
        if any(ack.confirms > others for ack in acks)
    ]
    return list_violations(
        "confirms", f"messages have more confirmations than {others} stores", too_many
    )
