"""The sums of docs/scaling.md are those that the command makes."""

from __future__ import annotations

import pytest

from bench.machines import Assumptions, machines
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
    found = machines(Assumptions(participants=participants))
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
