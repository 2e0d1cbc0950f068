"""`storenode sync`: one reconciliation with a peer, now, or a list of SDS messages asked for.

The list is lines of JSON, as `storenode pipeline audit --missing` writes them. It is read a portion
at a time, so little of it is in memory however long it is; stored messages are not requested, so it
may be processed again at any time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from storenode.cli.client.session import (
    DEFAULT_ADMIN,
    CommandSession,
    connected,
    parse_hash,
    time_options,
)
from storenode.cli.client.text import format_time
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.client.message import entries_of
from storenode.message.limits import HASH_BYTES, NS_PER_S
from storenode.sds.limits import MAX_ID_BYTES

if TYPE_CHECKING:
    from storenode.client.node import Entry
    from storenode.client.types import SyncReport

PORTION: Final = 500
"""IDs that are asked for at once; a node takes 1,000."""

MAX_LINE_BYTES: Final = 256 * 1024
MAX_NOTES: Final = 100

ListedEntry = tuple[str, "Entry"]
"""A channel, and an ID in it with its hint if any."""


@click.command(cls=LayeredCommand)
@option(
    "--peer",
    default="",
    metavar="[ID@]HOST:PORT",
    help="Peer of the node, as shown by `storenode status`; by default a random one.",
)
@time_options
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

    Without --from and --to, the window is the one of the node's own schedule; --from 0 is
    everything. The exit code is 0
    if both sides have the same messages afterwards, or if another session with this peer is under
    way, which does the same; otherwise it is 1, and the report shows the reason.

    With --ids nothing is reconciled: the node requests exactly the listed messages from the peer,
    or without --peer from each of its peers in turn. The exit code is 0 if the node then stores all
    of them. Stored messages are not requested, so the same list can be given again.
    """
    if ids is not None:
        if time_start is not None or time_end is not None:
            raise CliError(USAGE, "--ids asks for listed messages: leave --from and --to out.")
        # All of the list is read before a peer is asked.
        for _ in listed(ids):
            pass
        peers = [peer] if peer else [each.address for each in (await session.client.status()).peers]
        if not peers:
            raise CliError(FAILED, "The node has no peers to ask: start it with --peer HOST:PORT.")
        return await ListedFetch(session, peers, timeout / NS_PER_S).run(listed(ids))
    report = await session.client.synchronize(
        peer, time_start=time_start, time_end=time_end, timeout_s=timeout / NS_PER_S
    )
    session.out.report(report, rows_of(report))
    return OK if report.in_sync or report.outcome == "aborted" else FAILED


def rows_of(report: SyncReport) -> Iterator[tuple[str, str]]:
    """Yield the rows of a report for people."""
    yield "peer", report.peer
    yield "window", f"{format_time(report.time_start)} to {format_time(report.time_end)}"
    if report.outcome == "aborted":
        yield "result", "gave way to another session with this peer, which is under way"
        return
    if report.error:
        yield "result", f"{report.outcome}: {report.error}"
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
        yield "note", note
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


def listed(file: Path) -> Iterator[ListedEntry]:
    """Read a list of SDS messages.

    Raises:
        CliError: it cannot be read, or a line is none of such a list.
    """
    try:
        with file.open("rb") as opened:
            lines = iter(lambda: opened.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, 1):
                yield _parsed(line, f"Line {number} of {file}")
    except OSError as error:
        raise CliError(
            USAGE, f"The list {file} cannot be read ({error.strerror}): check the path."
        ) from error


def _parsed(line: bytes, where: str) -> ListedEntry:
    if len(line) > MAX_LINE_BYTES:
        raise CliError(USAGE, f"{where} is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        found = json.loads(line)
        channel, name, hint = found["channel"], found["message_id"], found.get("hint")
        digest = None if hint is None else parse_hash(hint)
        if all(isinstance(text, str) and text for text in (channel, name)):
            (channel + name).encode()
            return channel, (name, digest)
    except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise CliError(
        USAGE,
        f'{where} is not like {{"channel": "…", "message_id": "…"}}, perhaps with a "hint" of'
        f" {2 * HASH_BYTES} hexadecimal digits: give a list that `storenode pipeline audit"
        " --missing` has written.",
    )


_OUTCOMES: Final = {
    "missing": "that none of the peers holds",
    "refused": "that this node does not take, by its rules",
    "unasked": "that a peer may hold which could not be asked",
}
"""The outcomes of messages that did not arrive."""


@dataclass
class ListedFetch:
    """The fetch of a list from peers, and its result so far; ``left`` counts what did not come."""

    session: CommandSession
    peers: list[str]
    timeout_s: float
    present: int = 0
    stored: int = 0
    found: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    async def run(self, entries: Iterable[ListedEntry]) -> int:
        """Ask for everything, print the result, and return the exit code."""
        for channel, group in groupby(entries, key=itemgetter(0)):
            while portion := [entry for _, entry in islice(group, PORTION)]:
                await self._fetch(channel, portion)
        summary = {
            "complete": not self.left,
            "held": self.present,
            "found": dict(self.found),
            "messages_stored": self.stored,
            **{name: self.left[name] for name in _OUTCOMES},
            "peers": self.peers,
            "failed": self.failed,
            "notes": list(self.notes),
        }
        self.session.out.report(summary, self._rows())
        return FAILED if self.left else OK

    async def _fetch(self, channel: str, entries: list[Entry]) -> None:
        """Ask one peer after the other, for what those before it did not have."""
        # No message has a longer ID, and no node takes one that is much longer.
        left = [entry for entry in entries if len(entry[0].encode()) <= MAX_ID_BYTES]
        for entry in entries:
            if len(entry[0].encode()) > MAX_ID_BYTES:
                self._leave(channel, entry, "missing")
        refused: set[str] = set()
        for peer in self.peers:
            if not left or peer in self.failed:
                continue
            report = await self.session.client.fetch_messages(
                peer, channel, left, timeout_s=self.timeout_s
            )
            self.present += len(report.held)
            self.stored += report.messages_stored
            if report.found:
                self.found[peer] += len(report.found)
            if report.error:
                self.failed[peer] = report.error
            self.notes |= dict.fromkeys(report.notes[:MAX_NOTES])
            refused.update(entry.message_id for entry in report.refused)
            done = set(entries_of((*report.held, *report.found)))
            left = [entry for entry in left if entry not in done]
        for entry in left:
            absent = "unasked" if self.failed else "missing"
            self._leave(channel, entry, "refused" if entry[0] in refused else absent)

    def _leave(self, channel: str, entry: Entry, outcome: str) -> None:
        self.left[outcome] += 1
        name, hint = entry
        given = {} if hint is None else {"hint": hint.hex()}
        self.session.out.record(
            {"channel": channel, "message_id": name, **given, "outcome": outcome},
            f"{outcome}: {name} of {channel}",
        )

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "held", f"{self.present:,} here already"
        for peer, count in self.found.items():
            yield "found", f"{count:,} at {peer}"
        yield "stored", f"{self.stored:,} messages"
        for name, what in _OUTCOMES.items():
            if count := self.left[name]:
                yield name, f"{count:,} {what}"
        for peer, error in self.failed.items():
            yield "failed", f"{peer}: {error}"
        for note in self.notes:
            yield "note", note
