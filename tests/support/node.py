"""Nodes of tests: processes of the installed command, forked where that is the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import chaos.node
from chaos.node import READY_TIMEOUT_S, clean_environment, read_line
from tests.support import warm
from tests.support.warm import COMMAND

__all__ = [
    "COMMAND",
    "READY_TIMEOUT_S",
    "UV",
    "NodeProcess",
    "clean_environment",
    "read_line",
    "running_node",
    "shared_node",
    "with_defaults",
]

Scope = Literal["session", "module"]

UV = str(Path(sys.executable).with_name("uv"))
"""The installer."""


def with_defaults(args: Sequence[str], *defaults: str) -> tuple[str, ...]:
    """Return options, and before them the defaults of those that are not named.

    ``defaults``: names and values by turns.
    """
    named = {each.partition("=")[0] for each in args}
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    return (*(word for pair in pairs if pair[0] not in named for word in pair), *args)


@dataclass
class NodeProcess(chaos.node.NodeProcess):
    """A node of the installed command."""

    program: Sequence[str] = (COMMAND,)

    def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        **options: Any,  # noqa: ANN401 - as of Popen
    ) -> subprocess.Popen[bytes]:
        """Start a process, forked where that is the same."""
        return warm.popen(command, env=env, **options)


@contextmanager
def running_node(
    data_dir: Path, *args: str, database_url: str | None = None, **env: str
) -> Iterator[NodeProcess]:
    """Yield a node that serves, for the length of a ``with`` block."""
    node = NodeProcess(data_dir, args, database_url, env)
    try:
        yield node.start()
    finally:
        node.close()


def shared_node(name: str, *options: str, scope: Scope = "session") -> Any:  # noqa: ANN401 - pytest's
    """Return a fixture: a node with a store of its own that tests share."""

    @pytest.fixture(scope=scope)
    def node(
        tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
    ) -> Iterator[NodeProcess]:
        data_dir = tmp_path_factory.mktemp(name) / "node"
        with running_node(data_dir, *options, database_url=new_store()) as process:
            yield process

    return node
