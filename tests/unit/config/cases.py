"""A command with the options of a node, to see what configuration they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import click
import pytest

from store.config.node import NodeConfig
from store.config.options import RunCommand, options_of
from storenode.cli.errors import usage_sentence
from storenode.cli.options.layers import LayeredCommand, option


@dataclass
class Outcome:
    """A configuration, or the one sentence of a refusal."""

    config: NodeConfig | None = None
    other: Mapping[str, object] = field(default_factory=dict)
    refusal: str = ""


class CommandLine:
    """Parses as the command `storenode` does, with an environment of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Outcome:
        outcome = Outcome()
        with self._patch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            try:
                _group(outcome).main(list(arguments), "storenode", standalone_mode=False)
            except click.ClickException as error:
                outcome.refusal = usage_sentence(error)
        return outcome

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> NodeConfig:
        """Return the configuration of `storenode run` with these arguments."""
        outcome = self("run", *arguments, env=env)
        assert outcome.config is not None, outcome.refusal
        return outcome.config

    def refusal(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Return the sentence with which `storenode run` refuses these arguments."""
        outcome = self("run", *arguments, env=env)
        assert outcome.refusal, outcome.config
        return outcome.refusal


def _group(outcome: Outcome) -> click.Group:
    group = click.Group("storenode")
    db = click.Group("db")
    group.add_command(db)

    @group.command("run", cls=RunCommand)
    @options_of(NodeConfig)
    def run(**options: object) -> None:
        outcome.config = NodeConfig.from_options(options)

    @db.command("prune", cls=LayeredCommand)
    @option("--retention")
    @option("--dry-run", is_flag=True)
    @option("--from", "start")
    def prune(**options: object) -> None:
        outcome.other = options

    return group
