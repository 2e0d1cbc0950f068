"""`storenode sync`: one reconciliation with a peer, now, or a list of messages asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from storenode.cli.client.session import DEFAULT_ADMIN, CommandSession, connected
from storenode.cli.client.text import TIME, TIME_FORMS, format_time, labelled, safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.fetch import fetch_listed
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.message.limits import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storenode.client.types import SyncReport


@click.command(cls=LayeredCommand)
@option(
    "--peer",
    default="",
    metavar="[ID@]HOST:PORT",
    help="Peer of the node, as shown by `storenode status`; by default a random one.",
)
@option(
    "--from",
    "time_start",
    type=TIME,
    help=f"Reconcile from this time on: {TIME_FORMS}; 0 is everything.",
)
@option(
    "--to",
    "time_end",
    type=TIME,
    help="Reconcile messages before this time, written in the same ways.",
)
@option(
    "--timeout",
    type=POSITIVE_DURATION,
    default="15m",
    show_default=True,
    help="Stop waiting after this time; the node finishes what it has started.",
)
@option(
    "--ids",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead, fetch the SDS messages in this list, as written by pipeline audit --missing.",
)
@connected("--admin", DEFAULT_ADMIN)
async def sync(
    session: CommandSession,
    *,
    peer: str,
    time_start: int | None,
    time_end: int | None,
    timeout: int,  # noqa: ASYNC109 - the option's name
    ids: Path | None,
) -> int:
    """Reconcile a node with a peer now: each receives the messages that it lacks.

    Without --from and --to, the window is the one of the node's own schedule. The exit code is 0
    if both sides have the same messages afterwards, or if another session with this peer is under
    way, which does the same; otherwise it is 1, and the report shows the reason.

    With --ids nothing is reconciled: the node requests exactly the listed messages from the peer,
    or without --peer from each of its peers in turn. The exit code is 0 if the node then stores all
    of them. Stored messages are not requested, so the same list can be given again.
    """
    if ids is not None:
        if time_start is not None or time_end is not None:
            raise CliError(USAGE, "--ids asks for listed messages: leave --from and --to out.")
        return await fetch_listed(session, ids, peer, timeout / NS_PER_S)
    report = await session.client.synchronize(
        peer, time_start=time_start, time_end=time_end, timeout_s=timeout / NS_PER_S
    )
    if session.out.as_json:
        session.out.message(report)
    else:
        for line in labelled(rows_of(report)):
            session.out.line(line)
    return OK if report.in_sync or report.outcome == "aborted" else FAILED


def rows_of(report: SyncReport) -> Iterator[tuple[str, str]]:
    """Yield the rows of a report for people."""
    yield "peer", safe(report.peer)
    yield "window", f"{format_time(report.time_start)} to {format_time(report.time_end)}"
    if report.outcome == "aborted":
        yield "result", "gave way to another session with this peer, which is under way"
        return
    if report.error:
        yield "result", f"{report.outcome}: {safe(report.error)}"
    else:
        is_partial = any(note.startswith("not compared: ") for note in report.notes)
        extent = ", as far as it was compared" if is_partial else ""
        yield "result", f"in sync{extent}" if report.in_sync else "not in sync"
    if report.equality:
        yield "compared", _compared(report)
        yield "mode", "compact" if report.compact else "by WAKU-SYNC"
    if report.HasField("own_count") and report.HasField("peer_count"):
        yield "held", f"{report.own_count:,} here, {report.peer_count:,} there before"
    yield "found", f"{report.missing_here:,} missing here, {report.missing_there:,} missing there"
    yield "moved", f"{report.messages_received:,} received, {report.messages_sent:,} sent"
    for each in report.shown_conflicts:
        digests = f"content {each.own_digest.hex()} here, {each.peer_digest.hex()} there"
        yield "conflict", f"{each.message_hash.hex()}: {digests}"
    if report.refused_by_policy:
        yield "refused", f"{report.refused_by_policy:,} that one side does not take, by its rules"
    if report.undelivered:
        yield "withheld", f"{report.undelivered:,} that the peer promised and did not deliver"
    if report.left_over:
        yield "left over", "a limit was reached: reconcile again"
    for note in report.notes:
        yield "note", safe(note)
    size = f"{report.bytes_sent:,} bytes sent, {report.bytes_received:,} received"
    yield "cost", f"{report.seconds:.2f} s, {report.round_trips} round trips, {size}"


def _compared(report: SyncReport) -> str:
    """Describe the comparison of the two sides."""
    if report.equality == "keyed":
        return "by sums that nobody can forge"
    if report.HasField("keyed_from"):
        start = format_time(report.keyed_from)
        return f"by sums that nobody can forge from {start} on, before that by XOR"
    return "by XOR, which publishers can forge"
