"""`storenode status`: the state that a node reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from storenode.cli.client.session import DEFAULT_ADMIN, CommandSession, connected
from storenode.cli.client.text import format_time
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.cli.options.units import format_size
from storenode.message.limits import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storenode.client.types import DatabaseStatus, NodeStatus, PeerStatus, ResumeStatus


@click.command(cls=LayeredCommand)
@option(
    "--timeout",
    type=POSITIVE_DURATION,
    default="10s",
    show_default=True,
    help="Give up if the node has not answered after this time.",
)
@option(
    "--check",
    is_flag=True,
    help="Print only problems, one per line; the exit code is 1 if there are any.",
)
@connected("--admin", DEFAULT_ADMIN)
async def status(session: CommandSession, *, timeout: int, check: bool) -> int:  # noqa: ASYNC109 - the option's name
    """Show the problems of a node, and what it stores."""
    answer = await session.client.status(timeout_s=timeout / NS_PER_S)
    if not session.out.as_json:
        for line in _problems(answer):
            session.out.line(line)
    session.out.report(answer, () if check else _rows(answer))
    is_well = answer.ready and not answer.problems
    return OK if is_well or not check else FAILED


def _problems(answer: NodeStatus) -> Iterator[str]:
    if not answer.ready and not answer.problems:
        yield f"WARNING the node is not ready: {answer.unready}"
    for each in answer.problems:
        urgency = "CRITICAL" if each.critical else "WARNING"
        yield (
            f"{urgency} {each.name}: {each.sentence}, since {_time(each.since)}; {each.runbook_url}"
        )


def _rows(answer: NodeStatus) -> Iterator[tuple[str, str]]:
    yield "node", answer.node_id
    yield "version", answer.version
    yield "ready", "yes" if answer.ready else "no"
    yield "messages", f"{answer.messages:,}"
    yield "oldest", _time(answer.oldest_timestamp)
    yield "newest", _time(answer.newest_timestamp)
    yield "index", f"{answer.index_entries:,} entries"
    if answer.HasField("resume"):
        yield "resume", _resume(answer.resume)
    if answer.conflicts:
        yield "conflicts", f"{answer.conflicts:,} messages with the hash of another one"
    if answer.HasField("database"):
        yield from _database(answer.database)
    yield from _gossip(answer)
    for peer in answer.peers:
        yield "peer", _peer(peer)


def _database(database: DatabaseStatus) -> Iterator[tuple[str, str]]:
    parts = [database.host, format_size(database.size_bytes)]
    if database.standby:
        parts.insert(1, "a standby")
    if database.timeline:
        parts.append(f"timeline {database.timeline}")
    parts.append(f"{database.standbys} standbys")
    yield "database", ", ".join(parts)
    for disk in database.disks:
        free, size = format_size(disk.free_bytes), format_size(disk.size_bytes)
        yield "disk", f"{disk.volume}: {free} of {size} free"
    if database.archived:
        oldest = database.oldest_unarchived
        left = f"not archived since {_time(oldest)}" if oldest else "all that is over is archived"
        yield "archive", left


def _gossip(answer: NodeStatus) -> Iterator[tuple[str, str]]:
    if not answer.HasField("gossip"):
        yield "gossip", "off"
        return
    gossip = answer.gossip
    connected = sum(peer.connected for peer in gossip.peers)
    parts = [f"{connected:,} connected", f"{gossip.unread:,} unread"]
    if gossip.unread:
        parts[-1] += f", the oldest for {gossip.oldest_unread / NS_PER_S:,.1f} s"
    if gossip.waiting:
        parts.append(f"{gossip.waiting:,} waiting for parents")
    yield "gossip", ", ".join(parts)
    for peer in gossip.peers:
        if peer.slowed or peer.cut_off_until:
            state = f"cut off until {_time(peer.cut_off_until)}" if peer.cut_off_until else "slowed"
            reason = f": {peer.reason}" if peer.reason else ""
            yield "", f"{peer.node_id} {state}{reason}"


def _resume(resume: ResumeStatus) -> str:
    counts = f"{resume.messages:,} messages, {resume.stored:,} new"
    if resume.peers:
        counts += f", from {', '.join(resume.peers)}"
    if not resume.running:
        return f"finished, {counts}"
    span = resume.time_end - resume.time_start
    share = (resume.reached - resume.time_start) / span if span > 0 else 0.0
    error = f", {resume.error}" if resume.error else ""
    return f"{share:.0%} of the gap since {_time(resume.time_start)}, {counts}{error}"


def _peer(peer: PeerStatus) -> str:
    name = f"{peer.node_id}@{peer.address}" if peer.node_id else peer.address
    parts = ["connected" if peer.connected else "not connected"]
    if peer.in_session:
        parts.append("in a session now")
    parts.append(f"last sync {_time(peer.last_sync)}")
    if peer.last_sync:
        parts.append(_difference(peer))
    if peer.failures:
        parts.append(f"failed {peer.failures:,} times in a row: {peer.last_error}")
    return f"{name}  {', '.join(parts)}"


def _difference(peer: PeerStatus) -> str:
    known = []
    if peer.lacks:
        known.append(f"lacks {peer.lacks:,}")
    if peer.has:
        known.append(f"has {peer.has:,} more")
    refused = peer.last_report.refused_by_policy
    if refused:
        known.append(f"{refused:,} refused by rules")
    return " and ".join(known) or "nothing missing then"


def _time(time_ns: int) -> str:
    return format_time(time_ns) if time_ns else "never"
