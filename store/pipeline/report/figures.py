"""The figures of a report, as plain data and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from store.pipeline.report import names
from store.pipeline.report.arrivals import EDGES_S, Lateness, LatenessSummary
from store.pipeline.report.limits import MAX_NAME_CHARS
from store.pipeline.report.outlook import Limits, Outlook
from store.pipeline.report.traffic import RankedName, Ranking, Traffic
from store.pipeline.reports import time_text


@dataclass(frozen=True, slots=True)
class Difference:
    """An hour that is over and not the same in the archive and in the database, by messages."""

    start_ns: int
    archive: int
    database: int


@dataclass(frozen=True, slots=True)
class ArchiveComparison:
    """A comparison of an archive with a database: ``hours`` of the database that are over,
    ``count`` of which differ, and the newest of these.
    """

    hours: int
    count: int
    listed: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class ChannelPast:
    """The completeness of the past of a channel.

    Up to ``complete_ns`` nothing lacks (None: from nowhere on). ``missing`` parents are named since
    ``since_ns`` by messages of ``senders`` senders, of whom ``named`` are the foremost (None: a
    message without a sender). ``incomplete`` messages have something missing in their past.
    """

    channel: str
    messages: int
    missing: int
    incomplete: int
    complete_ns: int | None
    since_ns: int | None
    senders: int
    named: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class MissingParent:
    """A missing parent: who named it first, in which message, and when; ``hint`` is the hash that
    was named.
    """

    channel: str
    message_id: str
    named_by: int
    first: str | None
    sender: str | None
    since_ns: int | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class Completeness:
    """The result of an audit: for all channels, for the least complete ones, and the first parents
    that are missing. ``faults`` are violations, cycles and conflicts; ``untrue`` are claims of the
    past about other stores that are not borne out.
    """

    channels: int
    missing: int
    incomplete: int
    faults: int
    pasts: tuple[ChannelPast, ...]
    lost: tuple[MissingParent, ...]
    untrue: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """An archive or a database, with its limits and its expected growth."""

    name: str
    limits: Limits
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class ReportedPeer:
    """A peer as the queried node reports it; ``last_sync_ns`` 0: no sync since the start.

    ``lacks`` and ``has`` are messages that the peer is known to lack, and to have alone.
    """

    name: str
    connected: bool
    last_sync_ns: int
    failures: int
    last_error: str
    lacks: int
    has: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """The figures of a report; None: they do not exist, or were not requested.

    ``name`` of the place; ``made_ns`` is when the figures were gathered. ``peers`` beyond
    `pipeline.report.limits.MAX_PEERS` are left out, and ``peer_count`` is how many there are.
    """

    name: str
    made_ns: int
    traffic: Traffic | None
    compared: ArchiveComparison | None
    arrivals: LatenessSummary | None
    places: tuple[Place, ...]
    completeness: Completeness | None = None
    node: str | None = None
    peers: tuple[ReportedPeer, ...] = ()
    peer_count: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON; times are RFC 3339."""
        return {
            "name": self.name,
            "made": time_text(self.made_ns),
            "traffic": None if self.traffic is None else _traffic(self.traffic),
            "compared": None if self.compared is None else _compared(self.compared),
            "lateness": None if self.arrivals is None else _arrivals(self.arrivals),
            "places": [_place(each) for each in self.places],
            "completeness": None if self.completeness is None else _audited(self.completeness),
            "node": self.node,
            "peers": [_peer(each) for each in self.peers],
        }


def _traffic(traffic: Traffic) -> dict[str, Any]:
    axis = traffic.axis
    return {
        "messages": traffic.messages,
        "payload_bytes": traffic.payload_bytes,
        "from": time_text(axis.first_ns),
        "to": time_text(axis.last_ns),
        "step_s": axis.step_ns // 1_000_000_000,
        "not_drawn": traffic.not_drawn,
        "days": [
            {"day": names.day(day), "messages": messages, "payload_bytes": size}
            for day, (messages, size) in sorted(traffic.days.items())
        ],
        "steps": [
            {"start": time_text(start), "messages": traffic.steps.get(start, 0)}
            for start in axis.starts
        ],
        "cells": [
            {"start": time_text(start), "shard": shard, "messages": cell.messages}
            | {"active_hours": cell.active_hours, "hours": axis.hours(start)}
            for (start, shard), cell in sorted(traffic.cells.items())
        ],
        "gap_count": traffic.gap_count,
        "gaps": [
            {"shard": each.shard, "start": time_text(each.start_ns), "hours": each.hours}
            | {"expected_messages": each.expected}
            for each in traffic.gaps
        ],
        "topics": _ranking(traffic.topics, ("pubsub_topic", "content_topic")),
        "channels": _ranking(traffic.channels, ("channel",)),
        "messages_not_sds": traffic.not_sds,
    }


def _ranking(ranking: Ranking, keys: Sequence[str]) -> dict[str, Any]:
    return {
        "count": ranking.names,
        "messages": ranking.messages,
        "top": [_named(each, keys) for each in ranking.top],
        "others": ranking.other_names,
        "others_messages": ranking.other_messages,
        "others_payload_bytes": ranking.other_bytes,
    }


def _named(named: RankedName, keys: Sequence[str]) -> dict[str, Any]:
    # Cut off where a page cuts them off; the escapes of JSON are enough here.
    cut = (name[:MAX_NAME_CHARS] for name in named.names)
    return {
        **dict(zip(keys, cut, strict=True)),
        "messages": named.messages,
        "payload_bytes": named.payload_bytes,
        "first": time_text(named.first_ns),
        "last": time_text(named.last_ns),
    }


def _compared(compared: ArchiveComparison) -> dict[str, Any]:
    return {
        "hours": compared.hours,
        "differing": compared.count,
        "listed": [
            {"start": time_text(each.start_ns), "archive": each.archive, "database": each.database}
            for each in compared.listed
        ],
    }


def _audited(found: Completeness) -> dict[str, Any]:
    return {
        "channels": found.channels,
        "missing": found.missing,
        "incomplete": found.incomplete,
        "faults": found.faults,
        "claims_untrue": found.untrue,
        "least_complete": [
            {
                "channel": each.channel[:MAX_NAME_CHARS],
                "messages": each.messages,
                "missing": each.missing,
                "incomplete": each.incomplete,
                "complete_up_to": _maybe_time(each.complete_ns),
                "missing_since": _maybe_time(each.since_ns),
                "naming_senders": each.senders,
                "named_by": [name and name[:MAX_NAME_CHARS] for name in each.named],
            }
            for each in found.pasts
        ],
    }


def _maybe_time(ns: int | None) -> str | None:
    return None if ns is None else time_text(ns)


def _arrivals(arrivals: LatenessSummary) -> dict[str, Any]:
    return {
        "unknown": arrivals.unknown,
        "sources": {source: _lateness(each) for source, each in sorted(arrivals.sources.items())},
        "classes": [
            {"up_to_s": edge, "messages": messages}
            for edge, messages in zip([*EDGES_S, None], arrivals.classes, strict=True)
        ],
        "steps": [
            {"start": time_text(start), **_lateness(each)}
            for start, each in sorted(arrivals.steps.items())
        ],
    }


def _lateness(lateness: Lateness) -> dict[str, Any]:
    return {
        "messages": lateness.messages,
        "median_s": lateness.median_s,
        "p90_s": lateness.p90_s,
        "p99_s": lateness.p99_s,
        "most_s": lateness.most_s,
    }


def _place(place: Place) -> dict[str, Any]:
    outlook = place.outlook
    return {
        "name": place.name,
        "messages": outlook.messages,
        "stored_bytes": outlook.stored_bytes,
        "mean_of_days": outlook.days,
        "messages_a_day": outlook.messages_a_day,
        "bytes_a_day": outlook.bytes_a_day,
        "bytes_under_retention": outlook.age_bytes,
        "days_under_retention_size": outlook.size_days,
        "size_drops_first": outlook.drops_by_size(place.limits),
        "full_in_days": outlook.full_in_days,
    }


def _peer(peer: ReportedPeer) -> dict[str, Any]:
    return {
        "name": peer.name,
        "connected": peer.connected,
        "last_sync": time_text(peer.last_sync_ns) if peer.last_sync_ns else None,
        "failures": peer.failures,
        "last_error": peer.last_error,
        "lacks": peer.lacks,
        "has": peer.has,
    }
