"""The operator's page knows every option and its default."""

from __future__ import annotations

import re
from pathlib import Path

import click

from store.cli.run import run

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
ELSEWHERE = {"--config", "--help-all"}
"""Explained in the text."""


def test_every_option_is_in_a_table_with_its_default() -> None:
    rows = documented()
    options = [each for each in run.params if isinstance(each, click.Option) and not each.hidden]
    names = {max(option.opts, key=len) for option in options} - ELSEWHERE
    assert rows.keys() == names
    for option in options:
        name = max(option.opts, key=len)
        if isinstance(option.default, str | int) and name not in ELSEWHERE:
            assert rows[name] == f"`{option.default}`", name


def documented() -> dict[str, str]:
    """Default of each option, as the tables of the page have it."""
    rows: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if line.startswith("| `--"):
            for name in re.findall(r"--[a-z-]+", cells[1]):
                rows[name] = cells[2].strip()
    return rows
