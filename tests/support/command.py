"""The installed command in a process of its own, for tests of the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.node import COMMAND, NodeProcess, clean_environment

TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines that it printed."""
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """The JSON values that it printed, one a line."""
        return [json.loads(line) for line in self.lines]


@dataclass(frozen=True, slots=True)
class Command:
    """``storenode`` with the environment of a tester who has set the node's address.

    ``program`` is another installation of the command, and ``cwd`` where it runs. One that has not
    ended after ``timeout_s`` is taken to hang.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = (COMMAND,)
    cwd: Path | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of(cls, node: NodeProcess) -> Command:
        """Return the command, set to call this node."""
        return cls({"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin})

    def __call__(self, *arguments: str, stdin: bytes = b"", **env: str) -> Ended:
        """Run to the end."""
        with self._start(*arguments, stdin=subprocess.PIPE, **env) as process:
            try:
                out, err = process.communicate(stdin, self.timeout_s)
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, out.decode(), err.decode())

    def ok(self, *arguments: str, stdin: bytes = b"", **env: str) -> Ended:
        """Run to the end, which must be a success."""
        ended = self(*arguments, stdin=stdin, **env)
        assert ended.code == 0, f"{arguments} ended with {ended}"
        return ended

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start without waiting; the caller ends it."""
        return self._start(*arguments, stdin=stdin)

    def _start(self, *arguments: str, stdin: int, **env: str) -> subprocess.Popen[bytes]:
        return warm.popen(
            [*self.program, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.cwd,
            env=clean_environment(**{**self.env, **env}),
        )
