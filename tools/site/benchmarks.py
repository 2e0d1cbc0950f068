"""The tables of recorded measurements, as ``bench/results/charts.toml`` selects them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[2] / "bench" / "results"


def tables() -> str:
    """Return a section for each table: what it was measured on, and a row for each measurement."""
    given = tomllib.loads((RESULTS / "charts.toml").read_text(encoding="utf-8"))["table"]
    return "\n\n".join(_section(each) for each in given)


def _section(given: Mapping[str, Any]) -> str:
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
