"""Documents that are generated: the site, its references, charts, and the table of sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner

from bench.charts import IMAGES, Chart, charts, draw, path, svg
from store.cli.capacity import Capacity, capacity_command
from store.cli.run import run
from storenode import client
from storenode.cli.main import COMMANDS
from tests.support.pages import ROOT
from tools.site import references, schemas, versions
from tools.site.links import relocated

REPOSITORY = "https://example.org/repository"


@pytest.mark.parametrize(
    ("source", "place", "link", "expected"),
    [
        ("docs/sds.md", "sds.md", "peers.md#tls", "peers.md#tls"),
        ("docs/sds.md", "sds.md", "#state", "#state"),
        ("docs/sds.md", "sds.md", "runbooks", "runbooks/README.md"),
        ("docs/sds.md", "sds.md", "../LICENSE", f"{REPOSITORY}/blob/main/LICENSE"),
        ("docs/sds.md", "sds.md", "../proto", f"{REPOSITORY}/tree/main/proto"),
        ("docs/runbooks/README.md", "runbooks/README.md", "../sds.md#state", "../sds.md#state"),
        ("README.md", "index.md", "docs/sds.md", "sds.md"),
        ("README.md", "index.md", "docs/images/status.png", "images/status.png"),
        ("README.md", "index.md", "https://example.org/", "https://example.org/"),
    ],
)
def test_links_lead_to_a_page_or_to_the_repository(
    source: str, place: str, link: str, expected: str
) -> None:
    assert relocated(f"a [b]({link}) c", source, place, REPOSITORY) == f"a [b]({expected}) c"


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert pages - {*re.findall(r"\]\(([^)#]+)\)", text)} == set()


def test_every_version_links_to_the_others_without_javascript(tmp_path: Path) -> None:
    built, folder = tmp_path / "built", tmp_path / "site"
    for page in ("index.html", "client/index.html"):
        (built / page).parent.mkdir(parents=True, exist_ok=True)
        (built / page).write_text(f"<p>a page{versions.NOTICE}</p>")
    for version in ("0.9.0", "0.10.0", "0.11.0.dev0", "0.10.0"):
        versions.publish(built, folder, version)
    assert 'href="0.10.0/"' in (folder / "index.html").read_text()
    for each in ("0.9.0", "0.10.0", "0.11.0.dev0"):
        for page, up in (("index.html", "../"), ("client/index.html", "../../")):
            text = (folder / each / page).read_text()
            others = {"0.9.0", "0.10.0", "0.11.0.dev0"} - {each}
            assert set(re.findall(r'href="([^"]+)"', text)) == {f"{up}{name}/" for name in others}
            assert "<script" not in text


def test_the_reference_of_the_metrics_has_names_labels_and_types() -> None:
    text = references.metrics()
    assert "| `storenode_messages_stored_total{source}` | counter | Messages that " in text
    assert "| `storenode_peer_silent_since_timestamp_seconds{peer}` | gauge | " in text
    assert "| `storenode_query_seconds{method}` | histogram | " in text


def test_code_is_left_as_it_is() -> None:
    text = "```python\nf[0](LICENSE)\n```\n"
    assert relocated(text, "README.md", "index.md", REPOSITORY) == text


def test_every_public_name_of_the_client_is_in_its_reference() -> None:
    page = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: storenode\.client\.(\w+)$", page, re.MULTILINE)) == {
        *client.__all__
    }


def test_every_command_is_in_the_reference() -> None:
    text = references.commands()
    titles = re.findall(r"^#+ `storenode ?(.*)`$", text, re.MULTILINE)
    assert {title.partition(" ")[0] for title in titles} == {"", *COMMANDS}
    assert {"db upgrade", "pipeline archive"} <= {*titles}


def test_every_option_of_a_node_is_in_the_reference_with_its_default() -> None:
    text = references.commands().partition("`storenode run`")[2].partition("\n#")[0]
    entries = [" ".join(each.split()) for each in re.split(r"\n  (?=--)", text)]
    for option in run.params:
        if isinstance(option, click.Option) and not option.hidden:
            name = max(option.opts, key=len)
            (found,) = [each for each in entries if re.match(rf"{name}\b(?!-)", each)]
            if isinstance(option.default, str | int) and not option.is_flag:
                default = re.escape(str(option.default))
                assert re.search(rf"\[default: {default}[\];]", found), name


def test_the_reference_of_the_schemas_has_every_comment_and_links_that_lead_somewhere() -> None:
    text = schemas.reference(ROOT / "proto")
    assert text.startswith("## `storenode/v1/store.proto`")
    assert "#### `Store.Scan` {#storenode.v1.Store.Scan}\n" in text
    row = "| `min_confirms` | 2 | `uint32` | How many other stores must confirm each message "
    assert row in text
    assert "| `DUPLICATE` | 2 | Already stored here, and durable. |" in text
    assert "internal" not in text
    assert {*re.findall(r"\]\(#([^)]+)\)", text)} <= {*re.findall(r"\{#([^}]+)\}", text)}


# Charts of benchmarks

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


# The command capacity

SCALING = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
TABLE = SCALING.partition("## Machines")[2].partition("## Large groups")[0]


def row(name: str) -> list[str]:
    (line,) = [line for line in TABLE.splitlines() if line.startswith(f"| {name} | ")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def rounded(text: str) -> float:
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * {"": 1.0, "MB": 1.0, "GB": 1e3, "TB": 1e6}[unit]


@pytest.mark.parametrize(("column", "participants"), [*enumerate((1_000, 100_000, 10_000_000))])
def test_the_table_is_what_the_command_adds_up(column: int, participants: int) -> None:
    result = CliRunner().invoke(capacity_command, ["--participants", str(participants), "--json"])
    found = Capacity(**json.loads(result.stdout))
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


def test_drawings_fetch_nothing() -> None:
    for drawing in (ROOT / "docs/images").glob("*.svg"):
        text = drawing.read_text(encoding="utf-8")
        assert {*re.findall(r"https?://[^\s\"')]+", text)} <= {"http://www.w3.org/2000/svg"}, (
            drawing
        )


def test_the_overview_names_the_parts() -> None:
    path = ROOT / "docs/images/overview.svg"
    assert path.stat().st_size < 60_000
    words = "".join(ET.parse(path).getroot().itertext()).replace("\xa0", " ")
    parts = ("SDS", "store node", "Postgres", "archive", "gossip", "reconciliation")
    assert [part for part in parts if part not in words] == []
