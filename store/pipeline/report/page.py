"""The page of a report: HTML that needs nothing but itself, with every figure also as a table.

What strangers have named passes `pipeline.report.names.shown` and then Jinja's escaping; only what
is drawn here is put in as it is. No script runs, and the page's own policy forbids it to load any
resource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.report import names, plots
from store.pipeline.report.arrivals import EDGES_S, LatenessSummary
from store.pipeline.report.figures import ChannelPast, Completeness, Gathered, Place
from store.pipeline.report.findings import (
    FAR_DAYS,
    compared_finding,
    completeness_finding,
    findings_of,
    gap_finding,
    lateness_finding,
    outlook_finding,
    peers_finding,
)
from store.pipeline.report.limits import MAX_PEERS, OUTLOOK_DAYS, TOP
from store.pipeline.report.rendering import rendered
from store.pipeline.report.traffic import RankedName, Ranking, Traffic
from storenode.message.limits import NS_PER_S

_TEMPLATE: Final = "page.html"
_NONE: Final = "\N{EN DASH}"
_FIRST: Final = "; drops first"
_LATER: Final = "; has nothing left to drop"
"""Which of two kinds of retention comes to an end of the history, and which never does."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a ranking: its names, its traffic, and its share of the largest row, from 0 to 1."""

    names: tuple[str, ...]
    messages: str
    share: str
    payload: str
    last: str
    length: float


def page_of(gathered: Gathered) -> str:
    """Return the report as HTML."""
    return rendered(_TEMPLATE, _context(gathered))


def _context(gathered: Gathered) -> Mapping[str, Any]:
    traffic = gathered.traffic
    return {
        "gathered": gathered,
        "title": names.shown(gathered.name),
        "made": names.time(gathered.made_ns),
        "findings": findings_of(gathered),
        "tiles": _tiles(gathered),
        "traffic": None if traffic is None else _traffic(traffic),
        "gaps": None if traffic is None else _gaps(gathered, traffic),
        "lateness": None if traffic is None else _lateness(gathered.arrivals, traffic),
        "growth": None if traffic is None else _growth(gathered, traffic),
        "peers": None if gathered.node is None else _peers(gathered),
        "pasts": None if gathered.completeness is None else _pasts(gathered.completeness),
        "names": names,
        "shown_rows": TOP,
    }


def _tiles(gathered: Gathered) -> list[tuple[str, str]]:
    traffic = gathered.traffic
    if traffic is None:
        return []
    tiles = [
        (f"{traffic.messages:,}", "messages"),
        (names.size(traffic.payload_bytes), "of payload"),
        (f"{traffic.channels.names:,}", "SDS channels"),
        (f"{traffic.topics.names:,}", "content topics"),
        (f"{traffic.gap_count:,}", "gaps"),
    ]
    if gathered.completeness is not None:
        tiles.append((f"{gathered.completeness.missing:,}", "missing parents"))
    if gathered.compared is not None:
        tiles.append((f"{gathered.compared.count:,}", "hours that differ"))
    return tiles


def _traffic(traffic: Traffic) -> dict[str, Any]:
    axis = traffic.axis
    busiest = max(traffic.steps, key=lambda start: (traffic.steps[start], -start))
    step = _step(axis.step_ns)
    return {
        "title": f"The busiest {step} began {names.time(busiest)}, with"
        f" {names.count(traffic.steps[busiest], 'message')}",
        "step": step,
        "drawing": _markup(plots.draw_steps(traffic)),
        "steps": [(names.time(start), f"{traffic.steps.get(start, 0):,}") for start in axis.starts],
        "channels": _bars(traffic.channels)[:TOP],
        "more_channels": _more(traffic.channels),
        "channels_title": _leading(traffic.channels, "channel", "SDS messages"),
        "topics": _bars(traffic.topics)[:TOP],
        "more_topics": _more(traffic.topics),
        "topics_title": _leading(traffic.topics, "content topic", "messages"),
        "not_sds": traffic.not_sds,
        "ranked": traffic.channels,
        "ranked_topics": traffic.topics,
    }


def _leading(ranking: Ranking, what: str, messages: str) -> str:
    """Return the title of a ranking, which says the share of the first."""
    if not ranking.top:
        return f"No {what} has messages"
    if ranking.names == 1:
        return f"One {what} has all {messages}"
    share = ranking.top[0].messages / ranking.messages
    return f"The largest of {ranking.names:,} {what}s has {share:.0%} of the {messages}"


def _bars(ranking: Ranking) -> list[Bar]:
    most = max((each.messages for each in ranking.top), default=1)
    total = max(1, ranking.messages)
    return [_bar(each, most, total) for each in ranking.top]


def _more(ranking: Ranking) -> list[tuple[str, str, str]]:
    """Return the rows that are listed and not drawn as bars."""
    bars = _bars(ranking)[TOP:]
    return [(" · ".join(reversed(each.names)), each.messages, each.last) for each in bars]


def _bar(named: RankedName, most: int, total: int) -> Bar:
    return Bar(
        tuple(names.shown(name) for name in named.names),
        f"{named.messages:,}",
        f"{named.messages / total:.1%}",
        names.size(named.payload_bytes),
        names.time(named.last_ns),
        round(100 * named.messages / most, 1),
    )


def _gaps(gathered: Gathered, traffic: Traffic) -> dict[str, Any]:
    compared = gathered.compared
    return {
        "title": gap_finding(traffic).text,
        "drawing": _markup(plots.draw_heat(traffic, compared)),
        "step": _step(traffic.axis.step_ns),
        "levels": plots.level_edges(traffic),
        "listed": [
            (
                names.shard_name(gap.shard),
                names.time(gap.start_ns),
                names.time(gap.end_ns),
                f"{gap.hours:,}",
                f"{gap.expected:,}",
            )
            for gap in traffic.gaps
        ],
        "count": traffic.gap_count,
        "compared": None if compared is None else compared_finding(compared).text,
        "differing": []
        if compared is None
        else [
            (names.time(each.start_ns), f"{each.archive:,}", f"{each.database:,}")
            for each in compared.listed
        ],
        "differing_count": 0 if compared is None else compared.count,
        "shards": [_shard(traffic, shard) for shard in traffic.shards],
    }


def _shard(traffic: Traffic, shard: int) -> tuple[str, str, str, str]:
    cells = {start: cell for (start, at), cell in traffic.cells.items() if at == shard}
    hours = sum(cell.active_hours for cell in cells.values())
    messages = sum(cell.messages for cell in cells.values())
    silent = (traffic.axis.last_ns - traffic.axis.first_ns) // HOUR_NS - hours
    return names.shard_name(shard), f"{messages:,}", f"{hours:,}", f"{silent:,}"


def _lateness(arrivals: LatenessSummary | None, traffic: Traffic) -> dict[str, Any] | None:
    if arrivals is None:
        return None
    labels = plots.lateness_labels(EDGES_S)
    live = max(1, arrivals.live)
    shares = [messages / live for messages in arrivals.classes]
    return {
        "title": lateness_finding(arrivals).text,
        "classes": _markup(plots.draw_classes(labels, shares)) if arrivals.live else None,
        "steps": _markup(plots.draw_lateness(arrivals, traffic.axis)) if arrivals.steps else None,
        "step": _step(traffic.axis.step_ns),
        "counts": [
            (label, f"{messages:,}", f"{share:.2%}")
            for label, messages, share in zip(labels, arrivals.classes, shares, strict=True)
        ],
        "quantiles": [
            (
                names.time(start),
                f"{each.messages:,}",
                *_spans(each.median_s, each.p90_s, each.p99_s),
            )
            for start, each in sorted(arrivals.steps.items())
        ],
        "sources": [
            (
                source,
                f"{each.messages:,}",
                *_spans(each.median_s, each.p90_s, each.p99_s, each.most_s),
            )
            for source, each in sorted(arrivals.sources.items())
        ],
        "unknown": arrivals.unknown,
    }


def _spans(*seconds: float) -> tuple[str, ...]:
    return tuple(names.span(each) for each in seconds)


def _growth(gathered: Gathered, traffic: Traffic) -> dict[str, Any]:
    first = gathered.places[0].outlook
    ahead = min(OUTLOOK_DAYS, max(1, (traffic.axis.last_ns - traffic.axis.first_ns) // DAY_NS))
    newest = sorted(traffic.days.items())[-OUTLOOK_DAYS:]
    return {
        "title": " ".join(outlook_finding(place).text for place in gathered.places),
        "drawing": _markup(plots.draw_growth(traffic, first.messages_a_day, ahead)),
        "ahead": names.count(ahead, "day") if first.messages_a_day else None,
        "days": [
            (names.day(day), f"{messages:,}", names.size(size)) for day, (messages, size) in newest
        ],
        "places": [(place.name, _outlook(gathered, place)) for place in gathered.places],
    }


def _outlook(gathered: Gathered, place: Place) -> list[tuple[str, str]]:
    outlook, limits = place.outlook, place.limits
    rows = [
        ("Held now", f"{outlook.messages:,} messages, {names.size(outlook.stored_bytes)}"),
        ("Bytes a message", _maybe(_each(outlook.stored_bytes, outlook.messages), names.size)),
    ]
    if outlook.days:
        rows.append(
            (
                f"Gained a day (mean of {names.count(outlook.days, 'day')})",
                f"{outlook.messages_a_day:,.0f} messages, {names.size(outlook.bytes_a_day)}",
            )
        )
    both = None not in (limits.retention_ns, limits.retention_bytes) and outlook.days
    order = (_LATER, _FIRST) if outlook.drops_by_size(limits) else (_FIRST, _LATER)
    by_age, by_size = order if both else ("", "")
    if limits.retention_ns is not None:
        age = names.span(limits.retention_ns / NS_PER_S)
        effect = _maybe(outlook.age_bytes, lambda size: f"would settle at {names.size(size)}")
        rows.append((f"By age, a retention of {age}", effect + by_age))
    if limits.retention_bytes is not None:
        size = names.given_size(limits.retention_bytes)
        effect = _maybe(outlook.size_days, lambda days: f"reaches back {names.count(days, 'day')}")
        rows.append((f"By size, a retention of {size}", effect + by_size))
    if limits.disk_bytes is not None:
        disk = names.given_size(limits.disk_bytes)
        rows.append((f"A disk of {disk}", _fills(gathered, place)))
    return rows


def _each(total: int, number: int) -> float | None:
    return total / number if number else None


def _maybe(value: float | None, text: Callable[[float], str]) -> str:
    return "unknown" if value is None else text(value)


def _fills(gathered: Gathered, place: Place) -> str:
    outlook = place.outlook
    if not outlook.days:
        return "unknown"
    if outlook.full_in_days is None:
        return "is never full"
    if not outlook.full_in_days:
        return "is full"
    if outlook.full_in_days > FAR_DAYS:
        return "is not full within ten years"
    day = gathered.made_ns // DAY_NS + int(outlook.full_in_days)
    return f"is full in {names.count(outlook.full_in_days, 'day')}, {names.day(day)}"


def _pasts(found: Completeness) -> dict[str, Any]:
    bad = [each for each in found.pasts if each.missing or each.incomplete]
    # Of each channel the first row of the table of what is missing.
    lost = {each.channel: row for row, each in reversed([*enumerate(found.lost, 1)])}
    return {
        "title": completeness_finding(found).text,
        "rows": [
            (
                names.shown(each.channel),
                "nowhere" if each.complete_ns is None else names.time(each.complete_ns),
                f"{each.missing:,}",
                _NONE if each.since_ns is None else names.time(each.since_ns),
                _senders(each),
                f"{each.incomplete:,} of {each.messages:,}",
                lost.get(each.channel),
            )
            for each in bad
        ],
        "whole": found.channels - len(bad),
        "cut": len(bad) == len(found.pasts) < found.channels,
        "lost": [
            (
                names.shown(each.message_id),
                names.shown(each.channel),
                _NONE if each.since_ns is None else names.time(each.since_ns),
                _NONE if each.first is None else names.shown(each.first),
                _NONE if each.sender is None else names.shown(each.sender),
                f"{each.named_by:,}",
            )
            for each in found.lost
        ],
        "lost_count": found.missing,
    }


def _senders(past: ChannelPast) -> str:
    listed = ", ".join("(no sender)" if each is None else names.shown(each) for each in past.named)
    more = past.senders - len(past.named)
    return f"{listed} and {more:,} more" if more else listed or _NONE


def _peers(gathered: Gathered) -> dict[str, Any]:
    return {
        "title": peers_finding(gathered).text,
        "left_out": max(0, gathered.peer_count - MAX_PEERS),
        "rows": [
            (
                names.shown(each.name),
                "yes" if each.connected else "no",
                names.time(each.last_sync_ns) if each.last_sync_ns else "never",
                _ago(gathered.made_ns - each.last_sync_ns) if each.last_sync_ns else "",
                f"{each.lacks:,}" if each.last_sync_ns else _NONE,
                f"{each.has:,}" if each.last_sync_ns else _NONE,
                f"{each.failures:,}",
                names.shown(each.last_error, "") if each.failures else "",
            )
            for each in gathered.peers
        ],
    }


def _ago(length_ns: int) -> str:
    return f"{names.span(max(0, length_ns) / NS_PER_S)} before"


def _step(length_ns: int) -> str:
    """Return the length of a step as a noun."""
    if length_ns < DAY_NS:
        hours = length_ns // HOUR_NS
        return "hour" if hours == 1 else f"{hours} hours"
    days = length_ns // DAY_NS
    return "day" if days == 1 else f"{days} days"


def _markup(chart: str) -> Markup:
    """Return a chart as it is: nothing in it was chosen by strangers."""
    return Markup(chart)  # noqa: S704
