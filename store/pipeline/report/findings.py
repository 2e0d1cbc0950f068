"""What a report says first: one sentence for each thing that a reader came to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from store.pipeline.limits import DAY_NS
from store.pipeline.report import names
from store.pipeline.report.arrivals import Arrivals
from store.pipeline.report.gathered import Compared, Completeness, Gathered, Peer, Place
from store.pipeline.report.limits import LATE_S, LATE_SHARE
from store.pipeline.report.outlook import Limits, Outlook
from store.pipeline.report.traffic import Traffic
from storenode.message.limits import NS_PER_S

GOOD: Final = "good"
WARNING: Final = "warning"
NOTE: Final = "note"

PASTS: Final = "completeness"
GAPS: Final = "gaps"
LATE: Final = "lateness"
GROWTH: Final = "growth"
PEERS: Final = "peers"
"""Parts of the page, as links to them name them."""

_SOON_DAYS: Final = 14
"""A disk that is full within so many days is worth a warning."""

FAR_DAYS: Final = 3_650
"""Nobody knows what a day adds so many days from now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, whether it is good to hear, a warning, or neither, and which part of the page is
    about it.
    """

    kind: str
    text: str
    part: str = "traffic"


def findings_of(gathered: Gathered) -> list[Finding]:
    """Return all findings, warnings first."""
    found = list(_all(gathered))
    return sorted(found, key=lambda each: (WARNING, GOOD, NOTE).index(each.kind))


def _all(gathered: Gathered) -> Iterator[Finding]:
    traffic = gathered.traffic
    if traffic is None:
        yield Finding(WARNING, f"{gathered.name} holds no messages of this time.")
    else:
        yield gap_finding(traffic)
    if gathered.completeness is not None:
        yield completeness_finding(gathered.completeness)
        if gathered.completeness.untrue:
            yield claims_finding(gathered.completeness)
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
    """Return whether a shard was silent that never is."""
    if not traffic.gap_count:
        return Finding(GOOD, "No shard was silent for longer than its traffic explains.", GAPS)
    worst = traffic.gaps[0]
    return Finding(
        WARNING,
        f"{names.count(traffic.gap_count, 'gap')}: the greatest in {names.shard_name(worst.shard)},"
        f" {names.count(worst.hours, 'hour')} from {names.time(worst.start_ns)}, where about"
        f" {names.count(worst.expected, 'message')} would have been usual.",
        GAPS,
    )


def completeness_finding(found: Completeness) -> Finding:
    """Return whether the past of every channel is held."""
    if not found.channels:
        return Finding(NOTE, "No message is one of SDS, so none names others.", PASTS)
    if not (found.missing or found.incomplete or found.faults):
        channels = names.count(found.channels, "channel")
        return Finding(GOOD, f"Every message that another names is held, in {channels}.", PASTS)
    told = f"{names.count(found.missing, 'message')} that others name as parents"
    verb = "is" if found.missing == 1 else "are"
    dated = [each for each in found.pasts if each.since_ns is not None]
    since = ""
    if dated:
        first = min(dated, key=lambda each: each.since_ns or 0)
        since = f", first named {names.time(first.since_ns or 0)} in {names.shown(first.channel)}"
    past = f"; {names.count(found.incomplete, 'message')} with an incomplete past"
    faults = f"; {names.count(found.faults, 'contradiction')}" if found.faults else ""
    return Finding(WARNING, f"{told} {verb} missing{since}{past}{faults}.", PASTS)


def claims_finding(found: Completeness) -> Finding:
    """Return what the archive lacks of what another store was found to hold as well."""
    claims = names.count(found.untrue, "claim")
    return Finding(
        WARNING,
        f"{claims} that another store holds the same messages: the archive lacks some of them."
        " `storenode pipeline audit` names the time.",
        PASTS,
    )


def compared_finding(compared: Compared) -> Finding:
    """Return whether archive and database agree."""
    hours = names.count(compared.hours, "hour")
    if not compared.hours:
        return Finding(
            NOTE, "The database holds no hour that is over, to compare the archive with.", GAPS
        )
    if not compared.count:
        return Finding(GOOD, f"The archive holds {hours} of the database exactly.", GAPS)
    differ = "is" if compared.count == 1 else "are"
    return Finding(
        WARNING,
        f"{compared.count:,} of {hours} of the database {differ} not the same in the archive.",
        GAPS,
    )


def lateness_finding(arrivals: Arrivals) -> Finding:
    """Return how late new messages are stored."""
    if not arrivals.live:
        return Finding(NOTE, "Of no message is it known when a client or gossip brought it.", LATE)
    late = 1 - arrivals.share_within(LATE_S)
    latest = f", and {late:.1%} later than {names.span(LATE_S)}" if late else ""
    return Finding(
        WARNING if late >= LATE_SHARE else GOOD,
        f"{arrivals.share_within(1.0):.1%} of {names.count(arrivals.live, 'message')} that clients"
        f" and gossip brought were stored within a second of their timestamp{latest}.",
        LATE,
    )


def outlook_finding(place: Place) -> Finding:
    """Return how a place grows."""
    outlook = place.outlook
    if not outlook.days:
        return Finding(
            NOTE,
            f"{_start(place.name)} has no whole day yet, so nothing is said of its growth.",
            GROWTH,
        )
    gains = (
        f"{_start(place.name)} gains {names.count(outlook.messages_a_day, 'message')} and"
        f" {names.size(outlook.bytes_a_day)} a day"
    )
    full = outlook.full_in_days
    if full is None:
        return Finding(NOTE, f"{gains}{_ends(outlook, place.limits)}.", GROWTH)
    if full == 0:
        return Finding(WARNING, f"{gains}, and its disk is full.", GROWTH)
    if full > FAR_DAYS:
        return Finding(NOTE, f"{gains}, and its disk is not full within ten years.", GROWTH)
    kind = WARNING if full < _SOON_DAYS else NOTE
    return Finding(kind, f"{gains}, and its disk is full in {names.count(full, 'day')}.", GROWTH)


def _ends(outlook: Outlook, limits: Limits) -> str:
    """Return which retention drops messages; one of both is reached first."""
    if outlook.drops_by_size(limits) and outlook.size_days is not None:
        back = names.count(outlook.size_days, "day")
        size = names.given_size(limits.retention_bytes or 0)
        return f"; the retention by size ({size}) drops what is older than about {back}"
    if outlook.age_bytes is not None and limits.retention_ns is not None:
        age = names.span(limits.retention_ns / NS_PER_S)
        held = names.size(outlook.age_bytes)
        return f"; the retention by age drops what is older than {age}, and leaves {held}"
    return ""


def _start(name: str) -> str:
    return name[:1].upper() + name[1:]


def peers_finding(gathered: Gathered) -> Finding:
    """With whom the node has not reconciled for long, or at all."""
    peers = gathered.peers
    if not peers:
        return Finding(NOTE, "The node has no peers, so nothing repairs what it misses.", PEERS)
    never = [each for each in peers if not each.last_sync_ns]
    failing = [each for each in peers if each.failures]
    if never:
        return Finding(
            WARNING,
            f"{len(never):,} of {names.count(gathered.peer_count, 'peer')} never reconciled with"
            f" the node since it started: {_first_of(never)}."
            f"{f' Failing: {_first_of(failing)}.' if failing else ''}",
            PEERS,
        )
    oldest = min(peers, key=lambda each: each.last_sync_ns)
    kind = WARNING if failing or _ago_ns(gathered, oldest) > DAY_NS else GOOD
    return Finding(
        kind,
        f"All {names.count(gathered.peer_count, 'peer')} have reconciled with the node, the one"
        f" longest ago {names.span(_ago_ns(gathered, oldest) / NS_PER_S)} before this report"
        f"{f'; {len(failing):,} failed since' if failing else ''}.",
        PEERS,
    )


def _first_of(peers: Sequence[Peer]) -> str:
    more = f" and {len(peers) - 1:,} more" if len(peers) > 1 else ""
    return f"{names.shown(peers[0].name)}{more}"


def _ago_ns(gathered: Gathered, peer: Peer) -> int:
    return max(0, gathered.made_ns - peer.last_sync_ns)
