"""What a report says first: one sentence for each thing that a reader came to see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from store.pipeline.figures import names
from store.pipeline.figures.arrivals import Arrivals
from store.pipeline.figures.gathered import Compared, Gathered, Peer, Place
from store.pipeline.figures.outlook import Outlook
from store.pipeline.figures.traffic import Traffic
from store.pipeline.limits import DAY_NS
from storenode.message.limits import NS_PER_S

GOOD: Final = "good"
WARNING: Final = "warning"
NOTE: Final = "note"

_SOON_DAYS: Final = 14
"""A disk that is full within so many days is worth a warning."""

FAR_DAYS: Final = 3_650
"""Nobody knows what a day adds so many days from now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and whether it is good to hear, a warning, or neither."""

    kind: str
    text: str


def findings_of(gathered: Gathered) -> list[Finding]:
    """Everything that is to be said, warnings first."""
    found = list(_all(gathered))
    return sorted(found, key=lambda each: (WARNING, GOOD, NOTE).index(each.kind))


def _all(gathered: Gathered) -> Iterator[Finding]:
    traffic = gathered.traffic
    if traffic is None:
        yield Finding(WARNING, f"{gathered.name} holds no messages of this time.")
    else:
        yield gap_finding(traffic)
    if gathered.compared is not None:
        yield compared_finding(gathered.compared)
    if gathered.arrivals is not None:
        yield lateness_finding(gathered.arrivals)
    for place in gathered.places:
        yield outlook_finding(place)
    if gathered.node is not None:
        yield peers_finding(gathered)
    if traffic is not None and traffic.not_drawn:
        yield Finding(
            NOTE,
            "Counted, but not drawn over time, since its timestamp is far from all others:"
            f" {names.count(traffic.not_drawn, 'message')}.",
        )


def gap_finding(traffic: Traffic) -> Finding:
    """Whether a shard was silent that never is."""
    if not traffic.gap_count:
        return Finding(GOOD, "No shard was silent for longer than its traffic explains.")
    worst = traffic.gaps[0]
    return Finding(
        WARNING,
        f"{names.count(traffic.gap_count, 'gap')}: the greatest in {names.shard_name(worst.shard)},"
        f" {names.count(worst.hours, 'hour')} from {names.time(worst.start_ns)}, where about"
        f" {names.count(worst.expected, 'message')} would have been usual.",
    )


def compared_finding(compared: Compared) -> Finding:
    """Whether archive and database agree."""
    hours = names.count(compared.hours, "hour")
    if not compared.hours:
        return Finding(
            NOTE, "The database holds no hour that is over, to compare the archive with."
        )
    if not compared.count:
        return Finding(GOOD, f"The archive holds {hours} of the database exactly.")
    differ = "is" if compared.count == 1 else "are"
    return Finding(
        WARNING,
        f"{compared.count:,} of {hours} of the database {differ} not the same in the archive.",
    )


def lateness_finding(arrivals: Arrivals) -> Finding:
    """How late messages are that are on their way for the first time."""
    if not arrivals.live:
        return Finding(NOTE, "Of no message is it known when a client or gossip brought it.")
    late = arrivals.live - sum(arrivals.classes[:8])
    latest = f", and {late / arrivals.live:.1%} later than a minute" if late else ""
    return Finding(
        NOTE,
        f"{arrivals.share_within(1.0):.1%} of {names.count(arrivals.live, 'message')} that clients"
        f" and gossip brought were stored within a second of their timestamp{latest}.",
    )


def outlook_finding(place: Place) -> Finding:
    """Where a place is going."""
    outlook = place.outlook
    if not outlook.days:
        return Finding(
            NOTE, f"{_start(place.name)} has no whole day yet, so nothing is said of its growth."
        )
    gains = (
        f"{_start(place.name)} gains {names.count(outlook.messages_a_day, 'message')} and"
        f" {names.size(outlook.bytes_a_day)} a day"
    )
    full = outlook.full_in_days
    if full is None:
        return Finding(NOTE, f"{gains}{_ends(outlook)}.")
    if full == 0:
        return Finding(WARNING, f"{gains}, and its disk is full.")
    if full > FAR_DAYS:
        return Finding(NOTE, f"{gains}, and its disk is not full within ten years.")
    kind = WARNING if full < _SOON_DAYS else NOTE
    return Finding(kind, f"{gains}, and its disk is full in {names.count(full, 'day')}.")


def _ends(outlook: Outlook) -> str:
    if outlook.settled_bytes is not None:
        return f", and settles at {names.size(outlook.settled_bytes)}"
    if outlook.held_days is not None:
        return f", and reaches back {names.count(outlook.held_days, 'day')}"
    return ""


def _start(name: str) -> str:
    return name[:1].upper() + name[1:]


def peers_finding(gathered: Gathered) -> Finding:
    """With whom the node has not reconciled for long, or at all."""
    peers = gathered.peers
    if not peers:
        return Finding(NOTE, "The node has no peers, so nothing repairs what it misses.")
    never = [each for each in peers if not each.last_sync_ns]
    if never:
        return Finding(
            WARNING,
            f"{len(never):,} of {names.count(gathered.peer_count, 'peer')} never reconciled with"
            f" the node since it started: {names.shown(never[0].name)}"
            f"{' and others' if len(never) > 1 else ''}.",
        )
    oldest = min(peers, key=lambda each: each.last_sync_ns)
    failing = [each for each in peers if each.failures]
    kind = WARNING if failing or _ago_ns(gathered, oldest) > DAY_NS else GOOD
    return Finding(
        kind,
        f"All {names.count(gathered.peer_count, 'peer')} have reconciled with the node, the one"
        f" longest ago {names.span(_ago_ns(gathered, oldest) / NS_PER_S)} before this report"
        f"{f'; {len(failing):,} failed since' if failing else ''}.",
    )


def _ago_ns(gathered: Gathered, peer: Peer) -> int:
    return max(0, gathered.made_ns - peer.last_sync_ns)
