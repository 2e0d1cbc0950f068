"""The findings at the top of a report: one sentence for each question of a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from store.pipeline.limits import DAY_NS
from store.pipeline.report import names
from store.pipeline.report.arrivals import LatenessSummary
from store.pipeline.report.figures import (
    ArchiveComparison,
    Completeness,
    Gathered,
    Place,
    ReportedPeer,
)
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
"""The limit of a forecast in days; a later date is not reported."""


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """A sentence of a report, its kind (good, warning or note), and the part of the page with the
    details.
    """

    kind: str
    text: str
    part: str = "traffic"


def findings_of(gathered: Gathered) -> list[ReportFinding]:
    """Return all findings, warnings first."""
    found = list(_all(gathered))
    return sorted(found, key=lambda each: (WARNING, GOOD, NOTE).index(each.kind))


def _all(gathered: Gathered) -> Iterator[ReportFinding]:
    traffic = gathered.traffic
    if traffic is None:
        yield ReportFinding(WARNING, f"{gathered.name} holds no messages of this time.")
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
        yield ReportFinding(
            NOTE,
            "Counted, but not drawn over time, since its timestamp is far from all others:"
            f" {names.count(traffic.not_drawn, 'message')}.",
        )


def gap_finding(traffic: Traffic) -> ReportFinding:
    """Return a finding on the gaps in the traffic of shards."""
    if not traffic.gap_count:
        return ReportFinding(
            GOOD, "No shard was silent for longer than its traffic explains.", GAPS
        )
    worst = traffic.gaps[0]
    return ReportFinding(
        WARNING,
        f"{names.count(traffic.gap_count, 'gap')}: the greatest in {names.shard_name(worst.shard)},"
        f" {names.count(worst.hours, 'hour')} from {names.time(worst.start_ns)}, where about"
        f" {names.count(worst.expected, 'message')} would have been usual.",
        GAPS,
    )


def completeness_finding(found: Completeness) -> ReportFinding:
    """Return a finding on missing parents and incomplete pasts."""
    if not found.channels:
        return ReportFinding(NOTE, "No message is one of SDS, so none names others.", PASTS)
    if not (found.missing or found.incomplete or found.faults):
        channels = names.count(found.channels, "channel")
        return ReportFinding(
            GOOD, f"Every message that another names is held, in {channels}.", PASTS
        )
    subject = f"{names.count(found.missing, 'message')} that others name as parents"
    verb = "is" if found.missing == 1 else "are"
    dated = [each for each in found.pasts if each.since_ns is not None]
    since = ""
    if dated:
        first = min(dated, key=lambda each: each.since_ns or 0)
        since = f", first named {names.time(first.since_ns or 0)} in {names.shown(first.channel)}"
    past = f"; {names.count(found.incomplete, 'message')} with an incomplete past"
    faults = f"; {names.count(found.faults, 'contradiction')}" if found.faults else ""
    return ReportFinding(WARNING, f"{subject} {verb} missing{since}{past}{faults}.", PASTS)


def claims_finding(found: Completeness) -> ReportFinding:
    """Return a warning about claims of equality with another store that are not borne out."""
    claims = names.count(found.untrue, "claim")
    return ReportFinding(
        WARNING,
        f"{claims} that another store holds the same messages: the archive lacks some of them."
        " `storenode pipeline audit` names the time.",
        PASTS,
    )


def compared_finding(compared: ArchiveComparison) -> ReportFinding:
    """Return a finding on the hours that differ between archive and database."""
    hours = names.count(compared.hours, "hour")
    if not compared.hours:
        return ReportFinding(
            NOTE, "The database holds no hour that is over, to compare the archive with.", GAPS
        )
    if not compared.count:
        return ReportFinding(GOOD, f"The archive holds {hours} of the database exactly.", GAPS)
    differ = "is" if compared.count == 1 else "are"
    return ReportFinding(
        WARNING,
        f"{compared.count:,} of {hours} of the database {differ} not the same in the archive.",
        GAPS,
    )


def lateness_finding(arrivals: LatenessSummary) -> ReportFinding:
    """Return a finding on the lateness of new messages."""
    if not arrivals.live:
        return ReportFinding(
            NOTE, "Of no message is it known when a client or gossip brought it.", LATE
        )
    late = 1 - arrivals.share_within(LATE_S)
    latest = f", and {late:.1%} later than {names.span(LATE_S)}" if late else ""
    return ReportFinding(
        WARNING if late >= LATE_SHARE else GOOD,
        f"{arrivals.share_within(1.0):.1%} of {names.count(arrivals.live, 'message')} that clients"
        f" and gossip brought were stored within a second of their timestamp{latest}.",
        LATE,
    )


def outlook_finding(place: Place) -> ReportFinding:
    """Return a finding on the growth of an archive or a database."""
    outlook = place.outlook
    if not outlook.days:
        return ReportFinding(
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
        return ReportFinding(NOTE, f"{gains}{_ends(outlook, place.limits)}.", GROWTH)
    if full == 0:
        return ReportFinding(WARNING, f"{gains}, and its disk is full.", GROWTH)
    if full > FAR_DAYS:
        return ReportFinding(NOTE, f"{gains}, and its disk is not full within ten years.", GROWTH)
    kind = WARNING if full < _SOON_DAYS else NOTE
    return ReportFinding(
        kind, f"{gains}, and its disk is full in {names.count(full, 'day')}.", GROWTH
    )


def _ends(outlook: Outlook, limits: Limits) -> str:
    """Return which retention drops messages; one of both is reached first."""
    if outlook.drops_by_size(limits) and outlook.size_days is not None:
        back = names.count(outlook.size_days, "day")
        size = names.given_size(limits.retention_bytes or 0)
        return f"; the retention by size ({size}) drops what is older than about {back}"
    if outlook.age_bytes is not None and limits.retention_ns is not None:
        age = names.span(limits.retention_ns / NS_PER_S)
        remaining = names.size(outlook.age_bytes)
        return f"; the retention by age drops what is older than {age}, and leaves {remaining}"
    return ""


def _start(name: str) -> str:
    return name[:1].upper() + name[1:]


def peers_finding(gathered: Gathered) -> ReportFinding:
    """Return a finding on the peers that have not reconciled with the node for long, or at all."""
    peers = gathered.peers
    if not peers:
        return ReportFinding(
            NOTE, "The node has no peers, so nothing repairs what it misses.", PEERS
        )
    never = [each for each in peers if not each.last_sync_ns]
    failing = [each for each in peers if each.failures]
    if never:
        return ReportFinding(
            WARNING,
            f"{len(never):,} of {names.count(gathered.peer_count, 'peer')} never reconciled with"
            f" the node since it started: {_first_of(never)}."
            f"{f' Failing: {_first_of(failing)}.' if failing else ''}",
            PEERS,
        )
    oldest = min(peers, key=lambda each: each.last_sync_ns)
    kind = WARNING if failing or _ago_ns(gathered, oldest) > DAY_NS else GOOD
    return ReportFinding(
        kind,
        f"All {names.count(gathered.peer_count, 'peer')} have reconciled with the node, the one"
        f" longest ago {names.span(_ago_ns(gathered, oldest) / NS_PER_S)} before this report"
        f"{f'; {len(failing):,} failed since' if failing else ''}.",
        PEERS,
    )


def _first_of(peers: Sequence[ReportedPeer]) -> str:
    more = f" and {len(peers) - 1:,} more" if len(peers) > 1 else ""
    return f"{names.shown(peers[0].name)}{more}"


def _ago_ns(gathered: Gathered, peer: ReportedPeer) -> int:
    return max(0, gathered.made_ns - peer.last_sync_ns)
