"""The options of the command `storenode`, to see what configuration they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pytest

from store.cli.db import prune_command
from store.cli.run import run
from store.config.node import NodeConfig
from storenode.cli.errors import usage_sentence
from storenode.cli.main import cli


class CommandLine:
    """Parses as the command does, with an environment of its own, and runs nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the options of a command."""
        given: dict[str, Any] = {}
        with self._patch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            for command in (run, prune_command):
                patch.setattr(command, "callback", given.update)
            cli.main(list(arguments), "storenode", standalone_mode=False)
        return given

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> NodeConfig:
        """Return the configuration of `storenode run` with these arguments."""
        return NodeConfig.from_options(self("run", *arguments, env=env))

    def refusal(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Return the sentence with which `storenode run` refuses these arguments."""
        with pytest.raises(click.ClickException) as refused:
            self.run(*arguments, env=env)
        return usage_sentence(refused.value)
