"""The part of `storenode sync` that asks peers for listed SDS messages.

The list is lines of JSON, as `storenode pipeline audit --missing` writes them. It is read a portion
at a time, so little of it is in memory however long it is; what is held already is not asked for,
so it may be gone through again at any time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storenode.cli.client.session import CommandSession
from storenode.cli.client.text import labelled, safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.message.limits import HASH_BYTES
from storenode.message.text import parse_hex
from storenode.sds.limits import MAX_ID_BYTES

if TYPE_CHECKING:
    from storenode.client.node import Entry
    from storenode.client.types import HistoryEntry

PORTION: Final = 500
"""IDs that are asked for at once; a node takes 1,000."""

MAX_LINE_BYTES: Final = 256 * 1024
MAX_LISTED: Final = 100

Line = tuple[str, "Entry"]
"""A channel, and an ID in it with its hint if any."""


def listed(file: Path) -> Iterator[Line]:
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


def _parsed(line: bytes, where: str) -> Line:
    if len(line) > MAX_LINE_BYTES:
        raise CliError(USAGE, f"{where} is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        found = json.loads(line)
        channel, name, hint = found["channel"], found["message_id"], found.get("hint")
        digest = None if hint is None else parse_hex(hint)
        usable = all(isinstance(text, str) and text for text in (channel, name))
        if usable and (digest is None or len(digest) == HASH_BYTES):
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


_MISSING: Final = "missing"
_REFUSED: Final = "refused"
_UNASKED: Final = "unasked"
_OUTCOMES: Final = {
    _MISSING: "that none of the peers holds:",
    _REFUSED: "that this node does not take, by its rules:",
    _UNASKED: "that a peer may hold which could not be asked:",
}


@dataclass
class ListedFetch:
    """The fetch of a list from peers, and its result so far.

    ``left`` are the first entries that did not come, as they are printed, by outcome.
    """

    session: CommandSession
    peers: list[str]
    timeout_s: float
    present: int = 0
    stored: int = 0
    found: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    left: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, str] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    async def run(self, lines: Iterable[Line]) -> int:
        """Ask for everything, print the result, and return the exit code."""
        for channel, group in groupby(lines, key=itemgetter(0)):
            while portion := [entry for _, entry in islice(group, PORTION)]:
                await self._fetch(channel, portion)
        complete, out = not self.outcomes, self.session.out
        if out.as_json:
            out.json(
                {
                    "complete": complete,
                    "held": self.present,
                    "found": dict(self.found),
                    "messages_stored": self.stored,
                    **{name: self.outcomes[name] for name in _OUTCOMES},
                    "peers": self.peers,
                    "failed": self.failed,
                    "notes": list(self.notes),
                }
            )
        else:
            for line in labelled(self._rows()):
                out.line(line)
        return OK if complete else FAILED

    async def _fetch(self, channel: str, entries: list[Entry]) -> None:
        """Ask one peer after the other, for what those before it did not have."""
        # No message has such an ID, and no node takes one that is much longer.
        impossible = [entry for entry in entries if len(entry[0].encode()) > MAX_ID_BYTES]
        self._leave(channel, impossible, _MISSING)
        left = [entry for entry in entries if entry not in impossible]
        refused: set[str] = set()
        for peer in self.peers:
            if left and peer not in self.failed:
                left = await self._ask(peer, channel, left, refused)
        self._leave(channel, [entry for entry in left if entry[0] in refused], _REFUSED)
        others = [entry for entry in left if entry[0] not in refused]
        self._leave(channel, others, _UNASKED if self.failed else _MISSING)

    async def _ask(
        self, peer: str, channel: str, entries: list[Entry], refused: set[str]
    ) -> list[Entry]:
        """Ask a peer for entries, and return those that did not come."""
        report = await self.session.client.fetch_messages(
            peer, channel, entries, timeout_s=self.timeout_s
        )
        self.present += len(report.held)
        self.stored += report.messages_stored
        if report.found:
            self.found[peer] += len(report.found)
        if report.error:
            self.failed[peer] = report.error
        self.notes.update(report.notes[:MAX_LISTED])
        refused.update(entry.message_id for entry in report.refused)
        done = {_entry(each) for each in (*report.held, *report.found)}
        return [entry for entry in entries if entry not in done]

    def _leave(self, channel: str, entries: Iterable[Entry], outcome: str) -> None:
        out = self.session.out
        for name, hint in entries:
            self.outcomes[outcome] += 1
            if out.as_json:
                given = {} if hint is None else {"hint": hint.hex()}
                out.json({"channel": channel, "message_id": name, **given, "outcome": outcome})
            elif self.outcomes[outcome] <= MAX_LISTED:
                self.left[outcome].append(f"{safe(name)} of {safe(channel)}")

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "held", f"{self.present:,} here already"
        for peer, count in self.found.items():
            yield "found", f"{count:,} at {safe(peer)}"
        yield "stored", f"{self.stored:,} messages"
        for name, what in _OUTCOMES.items():
            if count := self.outcomes[name]:
                yield name, f"{count:,} {what}"
                yield from (("", each) for each in self.left[name])
                if count > len(self.left[name]):
                    yield "", f"and {count - len(self.left[name]):,} more"
        for peer, error in self.failed.items():
            yield "failed", f"{safe(peer)}: {safe(error)}"
        for note in self.notes:
            yield "note", safe(note)


def _entry(entry: HistoryEntry) -> Entry:
    hint = entry.retrieval_hint if entry.HasField("retrieval_hint") else None
    return entry.message_id, hint


async def fetch_listed(session: CommandSession, file: Path, peer: str, timeout_s: float) -> int:
    """Request the messages of a list from a node's peers, or from one; return the exit code.

    Raises:
        CliError: the list cannot be read, or the node has no peers.
    """
    # All of the list is looked at before anybody is asked.
    for _ in listed(file):
        pass
    peers = [peer] if peer else [each.address for each in (await session.client.status()).peers]
    if not peers:
        raise CliError(FAILED, "The node has no peers to ask: start it with --peer HOST:PORT.")
    return await ListedFetch(session, peers, timeout_s).run(listed(file))
