"""`storenode capacity`, and the table of docs/scaling.md that it makes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from store.cli.capacity import Assumptions, capacity, capacity_command
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Machines")[2].partition("## Large groups")[0]


def row(name: str) -> list[str]:
    (line,) = [line for line in TABLE.splitlines() if line.startswith(f"| {name} | ")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def rounded(text: str) -> float:
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * {"": 1.0, "MB": 1.0, "GB": 1e3, "TB": 1e6}[unit]


@pytest.mark.parametrize(("column", "participants"), [*enumerate((1_000, 100_000, 10_000_000))])
def test_the_table_is_what_the_command_adds_up(column: int, participants: int) -> None:
    found = capacity(Assumptions(participants=participants))
    for name, value in (
        ("messages a second, peak", found.messages_per_s),
        ("deliveries a second, peak", found.deliveries_per_s),
        ("followers", found.followers),
        ("cores of nodes", found.node_cores),
        ("cores of Postgres", found.postgres_cores),
        ("memory for followers", found.followers_mb),
        ("disk, one copy", found.disk_gb * 1e3),
    ):
        assert rounded(row(name)[column]) == pytest.approx(value, rel=0.25), name


def test_assumptions_are_options_and_bad_ones_are_refused() -> None:
    result = CliRunner().invoke(
        capacity_command, ["--participants", "1000", "--message-kb", "2", "--json"]
    )
    assert json.loads(result.stdout)["disk_gb"] == pytest.approx(1_000 * 20 * 30 * 2 / 1e6)
    for bad in ("0", "-1", "nan", "inf", "many"):
        result = CliRunner().invoke(capacity_command, ["--participants", bad])
        assert result.exit_code == 2
        assert "--participants" in result.stderr
