"""A participant process, and everything that it reported in all of its lives."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.checker.history import Ack, History, Published
from chaos.checker.logs import Entry, Log
from chaos.soak.machine import PATIENCE_S
from chaos.waiter import StuckError

PACE_S: Final = 1.5
"""Mean seconds between two messages of a participant."""

_ROOT: Final = Path(__file__).parents[2]
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_END_S: Final = 60.0


class RemoteParticipant:
    """A process of `chaos.soak.participant`.

    ``store_of`` returns the store behind an address of ``nodes`` now.

    Attributes:
        sent: digests of the contents that it sent, by message ID.
        lost: IDs that it reported as lost.
        refusals: how often a node refused a message, by reason.
        state: its last state.
    """

    def __init__(
        self,
        name: str,
        channel: str,
        nodes: Sequence[str],
        directory: Path,
        history: History,
        *,
        store_of: Callable[[str], str],
    ) -> None:
        self.name = name
        self.channel = channel
        self.sent: dict[str, str] = {}
        self.lost: set[str] = set()
        self.refusals = Counter[str]()
        self.state: dict[str, Any] = {}
        self._nodes = nodes
        self._directory = directory
        self._history = history
        self._store_of = store_of
        self._reports = Counter[str]()
        self._changed = asyncio.Event()
        self._saved: set[str] = set()
        self._log: list[Entry] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process of its current life."""
        assert self._process is not None, "the participant was not started"
        return self._process

    async def start(self) -> None:
        """Start a life on the state of the last one, and wait until it has joined."""
        options = {
            "nodes": ",".join(self._nodes),
            "channel": self.channel,
            "name": self.name,
            "pace": PACE_S,
            "state": self._directory / f"{self.name}.db",
            # A message that was sent and not saved in an earlier life has used up its number.
            "first": self._reports["sending"],
        }
        line = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        joined = self._reports["joined"]
        with (self._directory / f"{self.name}.log").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chaos.soak.participant", *line),
                cwd=_ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,
            )
        self._reading = asyncio.create_task(self._read(self._process))
        await self._wait_for("joined", joined)

    async def kill(self) -> None:
        """Send SIGKILL; all that it reported before is read."""
        self.process.kill()
        await self.process.wait()
        await self._reading

    async def stop(self) -> None:
        """Stop sending."""
        await self._ask("stop", "stopped")

    async def look(self) -> dict[str, Any]:
        """Return its state now."""
        await self._ask("state", "length")
        return self.state

    async def read_log(self) -> Log:
        """Read its log."""
        await self._ask("log", "log")
        return Log(self.name, self.channel, self.sent, self._log, frozenset(self.lost))

    async def close(self) -> None:
        """End it."""
        if self._process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await self._reading

    async def _ask(self, line: str, answer: str) -> None:
        before = self._reports[answer]
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self._wait_for(answer, before)

    async def _wait_for(self, report: str, before: int) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._reports[report] == before:
                    if self._reading.done():
                        raise StuckError(f"participant {self.name} has ended: see its log")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StuckError(f"participant {self.name} does not report {report!r}") from None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        # A line without its end was cut short by a kill, before what it reports was done.
        while (line := await process.stdout.readline()).endswith(b"\n"):
            fields = json.loads(line)
            self._take(fields)
            self._reports.update(fields.keys())
            self._changed.set()
        self._changed.set()

    def _take(self, fields: dict[str, Any]) -> None:
        if "joined" in fields:
            # A message that was not saved when the process was killed never left it.
            kept = self._saved.union(fields["own"])
            self.sent = {name: content for name, content in self.sent.items() if name in kept}
        elif "saved" in fields:
            self._saved.add(fields["saved"])
        elif "published" in fields:
            self._history.publish(
                (bytes.fromhex(digest), Published(bytes.fromhex(mark), time_ns, self.name))
                for digest, mark, time_ns in fields["published"]
            )
        elif "acknowledged" in fields:
            digests = [bytes.fromhex(digest) for digest in fields["acknowledged"]]
            ack = Ack(self._store_of(fields["node"]), time.monotonic(), 0)
            self._history.acknowledge(digests, ack)
        elif "sending" in fields:
            self.sent[fields["sending"]] = fields["content"]
        elif "refused" in fields:
            self.refusals[fields["refused"]] += 1
        elif "length" in fields:
            self.state = fields
            self.lost.update(fields["lost"])
        elif "log" in fields:
            self._log = [Entry(*row) for row in fields["log"]]
