"""What stores hold at the end, against what was published and acknowledged.

Rules, by the name under which a breach is reported:

- *lost*: what was acknowledged is held by every node, unless nobody had promised that it would be
  (`History.may_be_lost`), or the node's retention dropped it (`History.may_go_ns`).
- *unknown*: what is served was published.
- *altered*: what is served is what was published, field by field, under its own hash.
- *twice*, *order*: a scan gives each message once, in the order of time and hash.
- *kept*: what retention had to drop is not served.
- *by hash*: a look-up by hash finds what a scan gives, and nothing else.
- *unequal*: what any node serves, every node serves, but for what retention dropped.
- *confirms*: nobody counts more confirmations than there are other stores.
- *follow*: a follower that went on from its cursors got everything, and nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.soak.checker.history import History
from bench.soak.checker.verdict import Violation, violation


@dataclass(frozen=True, slots=True)
class Served:
    """A message as a node served it, under the hash ``claimed``; ``computed`` is its own."""

    claimed: bytes
    computed: bytes
    fingerprint: bytes
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node holds at the end: by `Scan`, and of all hashes that were published, by `Query`.

    ``followed`` is what its follower got in the last reading from the beginning, in order.
    """

    node: str
    store: str
    scanned: Sequence[Served]
    by_hash: Collection[bytes]
    followed: Sequence[bytes] = field(default=())


def check_stores(history: History, holdings: Sequence[Holding]) -> list[Violation]:
    """All rules above; an empty list when they hold."""
    held = {each.node: {message.claimed for message in each.scanned} for each in holdings}
    found = _confirms(history, len(holdings) - 1)
    for each in holdings:
        found += _lost(history, each, held)
        found += _served(history, each)
        found += _read_alike(each, held[each.node])
    return found + _unequal(history, holdings, held)


def _lost(history: History, holding: Holding, held: Mapping[str, set[bytes]]) -> list[Violation]:
    anywhere = set[bytes]().union(*held.values())
    may_go_ns = history.may_go_ns(holding.store)
    missing = {
        digest
        for digest in history.acks.keys() - held[holding.node]
        if history.published[digest].timestamp_ns >= may_go_ns
        and (digest in anywhere or not history.may_be_lost(digest))
    }
    nowhere, elsewhere = missing - anywhere, missing & anywhere
    return [
        *violation(
            "lost", f"acknowledged messages, missing at {holding.node}, nobody has", nowhere
        ),
        *violation("lost", f"acknowledged messages {holding.node} lacks, others have", elsewhere),
    ]


def _served(history: History, holding: Holding) -> list[Violation]:
    node, scanned = holding.node, holding.scanned
    times = Counter(message.claimed for message in scanned)
    unknown = times.keys() - history.published.keys()
    altered = {
        message.claimed
        for message in scanned
        if message.claimed not in unknown
        and (
            message.computed != message.claimed
            or message.fingerprint != history.published[message.claimed].fingerprint
        )
    }
    kept = {
        message.claimed
        for message in scanned
        if message.timestamp_ns < history.must_go_ns(holding.store)
    }
    places = [(message.timestamp_ns, message.claimed) for message in scanned]
    astray = [later for earlier, later in pairwise(places) if later < earlier]
    twice = [digest for digest, count in times.items() if count > 1]
    return [
        *violation("unknown", f"messages that {node} serves were published by nobody", unknown),
        *violation("altered", f"messages that {node} serves are not as published", altered),
        *violation("twice", f"messages come more than once in a scan of {node}", twice),
        *violation("order", f"messages come out of order in a scan of {node}", astray),
        *violation("kept", f"messages that {node} serves should have been dropped", kept),
    ]


def _read_alike(holding: Holding, held: set[bytes]) -> list[Violation]:
    node, times = holding.node, Counter(holding.followed)
    differing = held.symmetric_difference(holding.by_hash)
    twice = [digest for digest, count in times.items() if count > 1]
    return [
        *violation("by hash", f"hashes of {node} differ between look-up and scan", differing),
        *violation("follow", f"messages never came to the follower of {node}", held - times.keys()),
        *violation("follow", f"messages came more than once to the follower of {node}", twice),
    ]


def _unequal(
    history: History, holdings: Sequence[Holding], held: Mapping[str, set[bytes]]
) -> list[Violation]:
    times = {message.claimed: message.timestamp_ns for each in holdings for message in each.scanned}
    found: list[Violation] = []
    for each in holdings:
        may_go_ns = history.may_go_ns(each.store)
        lacking = {
            digest
            for digest in times.keys() - held[each.node] - history.acks.keys()
            if times[digest] >= may_go_ns
        }
        text = f"unacknowledged messages that others serve are missing at {each.node}"
        found += violation("unequal", text, lacking)
    return found


def _confirms(history: History, others: int) -> list[Violation]:
    too_many = [
        digest
        for digest, acks in history.acks.items()
        if any(ack.confirms > others for ack in acks)
    ]
    return violation("confirms", f"messages have more confirmations than {others} stores", too_many)
