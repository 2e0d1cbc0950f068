"""References generated from the code: commands, metrics of a node, and recorded measurements."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client import Counter

from store.config.options import SHOW_ALL
from store.observe.metrics import Metrics
from storenode.cli.main import cli

WIDTH: Final = 90
RESULTS: Final = Path(__file__).resolve().parents[2] / "bench" / "results"


def commands() -> str:
    """Describe every command with its subcommands, in Markdown."""
    return "\n\n".join(_commands(cli, click.Context(cli, info_name="storenode"), 2))


def _commands(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    context.terminal_width = WIDTH
    context.meta[SHOW_ALL] = True
    yield f"{'#' * level} `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            inner = click.Context(found, info_name=name, parent=context)
            yield from _commands(found, inner, level if context.parent is None else level + 1)


def metrics() -> str:
    """Describe every metric of a node as a table in Markdown."""
    return "\n".join(["| metric | type | meaning |", "|---|---|---|", *sorted(_metrics())])


def _metrics() -> Iterator[str]:
    for attribute, metric in vars(Metrics).items():
        if isinstance(metric, partial):
            given = metric.keywords
            suffix = "_total" if metric.func is Counter else ""
            labels = f"{{{','.join(given['labelnames'])}}}" if given["labelnames"] else ""
            name = f"storenode_{given.get('name', attribute)}{suffix}{labels}"
            kind = metric.func.__name__.lower()
            yield f"| `{name}` | {kind} | {given['documentation']} |"


def measurements() -> str:
    """Return a section for each table: what it was measured on, and a row for each measurement."""
    given = tomllib.loads((RESULTS / "charts.toml").read_text(encoding="utf-8"))["table"]
    return "\n\n".join(_measurement(each) for each in given)


def _measurement(given: Mapping[str, Any]) -> str:
    name = given["benchmark"]
    recorded = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    where, columns = given.get("where", {}), given["columns"]
    rows = [each for each in recorded["measurements"] if where.items() <= each.items()]
    machine = recorded["machine"]
    about = (
        f"`python -m bench {name}`, {recorded['date']}, commit {recorded['commit']}:"
        f" {machine['processor']}, {machine['cores']} cores, Python {machine['python']}."
    )
    return "\n".join([f"### {given['title']}", "", about, "", *_table(columns, rows)])


def _table(columns: Mapping[str, str], rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"| {' | '.join(columns.values())} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(key)) for key in columns)} |"


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case _:
            return str(value)
