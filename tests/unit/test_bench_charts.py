"""The charts of docs/benchmarks.md are those of the committed figures, and show them in scale."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from bench.charts import IMAGES, Chart, charts, path, svg
from tests.support.pages import ROOT
from tools.site import references

NAMESPACE = "{http://www.w3.org/2000/svg}"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")

every_chart = pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.file)


def of_class(chart: Chart, tag: str, kind: str) -> list[ET.Element]:
    found = ET.fromstring(svg(chart)).iter(f"{NAMESPACE}{tag}")
    return [each for each in found if each.get("class") == kind]


@every_chart
def test_what_is_committed_is_what_the_command_makes(chart: Chart) -> None:
    assert path(chart).read_text(encoding="utf-8") == svg(chart)


@every_chart
def test_bars_have_the_lengths_of_their_values(chart: Chart) -> None:
    for number in range(chart.bars):
        values = [row.values[number] for row in chart.rows if number < len(row.values)]
        # The first marks are those of the legend.
        bars = of_class(chart, "rect", f"s{number}")[-len(values) :]
        ends = {chart.x(value) for value in values}
        drawn = {float(bar.attrib["x"]) for bar in bars}
        drawn |= {round(float(bar.attrib["x"]) + float(bar.attrib["width"]), 1) for bar in bars}
        assert len(bars) == len(values)
        assert ends <= drawn
    low, high = chart.ends()
    assert chart.x(low) < min(chart.x(row.values[0]) for row in chart.rows)
    assert chart.x(max(max(row.values) for row in chart.rows)) <= chart.x(high)


@every_chart
def test_every_value_and_limit_is_shown(chart: Chart) -> None:
    text = " ".join(ET.fromstring(svg(chart)).itertext())
    for row in chart.rows:
        assert row.label in text
        assert all(f"{value:g}" in text for value in row.values)
    limits = [chart.x(row.limit) for row in chart.rows if row.limit is not None]
    drawn = [float(line.attrib["x1"]) for line in of_class(chart, "line", "limit")]
    assert drawn[1:] == limits


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
