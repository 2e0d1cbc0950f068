"""The charts of docs/benchmarks.md are those of the committed figures, and show them in scale."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from bench.charts import IMAGES, Chart, charts, draw, path, svg
from tests.support.pages import ROOT
from tools.site import references

PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")

every_chart = pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.file)


@every_chart
def test_what_is_committed_is_what_the_command_makes(chart: Chart) -> None:
    assert path(chart).read_text(encoding="utf-8") == svg(chart)


@every_chart
def test_bars_have_the_lengths_of_their_values(chart: Chart) -> None:
    ax = draw(chart).axes[0]
    low, high = sorted(ax.get_xlim())
    for number, bars in enumerate(ax.containers):
        values = [row.values[number] for row in chart.rows if number < len(row.values)]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert ends == pytest.approx(values)
        assert low <= min(values) <= max(values) <= high
    limits = [row.limit for row in chart.rows if row.limit is not None]
    drawn = [path.get_extents().x0 for lines in ax.collections for path in lines.get_paths()]
    assert drawn == limits


@every_chart
def test_every_value_is_shown(chart: Chart) -> None:
    text = " ".join(ET.fromstring(svg(chart)).itertext())
    for row in chart.rows:
        assert row.label in text
        assert all(f"{value:g}" in text for value in row.values)


def test_the_page_shows_all_charts_and_no_others() -> None:
    shown = re.findall(r"\]\(images/(bench-[\w-]+\.svg)\)", PAGE)
    assert sorted(shown) == sorted(path(chart).name for chart in charts())
    assert sorted(each.name for each in IMAGES.glob("bench-*.svg")) == sorted(shown)


def test_the_tables_of_measurements_name_what_they_were_measured_on() -> None:
    text = references.measurements()
    titles = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert titles[0] == "Publishing in batches"
    assert len(titles) == len(re.findall(r"commit [0-9a-f]{12}: .+ cores, Python 3", text))
    assert "| d=1,000 |" in text
