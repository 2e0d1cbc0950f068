"""The further pages of a report: from it a reader comes to every channel by links alone."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.sql import Row

from store.pipeline.errors import PipelineError
from store.pipeline.report import listed
from store.pipeline.report.listed import Pages
from store.pipeline.report.names import shown, time
from tests.unit.pipeline.test_page import HOSTILE, START, Elements

PER_PAGE = 10
KEYS = ("channel",)


def named(channel: str, **past: object) -> Row:
    return Row(channel=channel, messages=2_000, bytes=5_000, last_ns=START, **past)


def made(output: Path, rows: list[Row]) -> Path:
    """Write pages of channels, and a report with a link to them; where the link leads."""
    with Pages(output) as pages:
        pages.write("channel", iter(rows), KEYS)
        folder = pages.publish()
    assert folder is not None
    output.write_text(f'<a href="{pages.links["channel"]}">all</a>', encoding="utf-8")
    return output.parent / unquote(pages.links["channel"])


def reached(page: Path) -> dict[Path, Elements]:
    """Every page that links lead to."""
    found: dict[Path, Elements] = {}
    ahead = [page.resolve()]
    while ahead:
        here = ahead.pop()
        if here not in found:
            found[here] = Elements(here.read_text(encoding="utf-8"))
            links = [value for name, value in found[here].attributes if name == "href"]
            paths = [unquote(link.partition("#")[0]) for link in links]
            ahead += [(here.parent / path).resolve() for path in paths if path]
    return found


def test_every_channel_is_reached_by_links_from_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed, "PER_PAGE", PER_PAGE)
    names = [f"channel-{number:04}" for number in range(2_345)]
    output = tmp_path / "über 100%.html"
    first = made(output, [named(each) for each in names])
    pages = reached(output)
    assert set(pages) == {output, *first.parent.iterdir()}, "nothing else is there"
    del pages[output]
    rows = {page: each.tags.count("tr") - 1 for page, each in pages.items()}
    assert max(rows.values()) == PER_PAGE
    layers = sorted(page.name.split("-")[1] for page in pages if page != first)
    assert layers == ["0"] * 235 + ["1"] * 24 + ["2"] * 3
    texts = [text for page, each in pages.items() if "-0-" in page.name for text in each.texts]
    assert sorted(set(texts) & set(names)) == names
    assert "2,345 channels, from" in pages[first].texts
    assert {"channel-0000", "channel-2344"} <= set(pages[first].texts)


def test_a_page_says_what_a_channel_lacks(tmp_path: Path) -> None:
    audited = {"missing": 3, "incomplete": 7, "point_ts": START}
    rows = [
        named("a", **audited),
        named("b", **{**audited, "point_ts": None}),
        named("c", missing=None, incomplete=None, point_ts=None),
    ]
    first = made(tmp_path / "report.html", rows)
    (page,) = first.parent.glob("channels-0-*.html")
    texts = Elements(page.read_text(encoding="utf-8")).texts
    said = [each for each in texts if each]
    for row in (
        ["a", "2,000", "5 kB", time(START), time(START), "3", "7"],
        ["b", "2,000", "5 kB", time(START), "nowhere", "3", "7"],
        ["c", "2,000", "5 kB", time(START), *["\N{EN DASH}"] * 3],
    ):
        at = max(place for place, text in enumerate(said) if text == row[0])
        assert said[at : at + len(row)] == row


def test_names_of_strangers_are_text_there_too(tmp_path: Path) -> None:
    first = made(tmp_path / "report.html", [named(each) for each in HOSTILE])
    for page in first.parent.iterdir():
        text = page.read_text(encoding="utf-8")
        elements = Elements(text)
        assert not {"script", "img", "link", "iframe", "form"} & set(elements.tags)
        assert all(not name.startswith("on") for name, _ in elements.attributes)
        assert "default-src 'none'" in text
        assert "\u202e" not in text
        if "-0-" in page.name:
            assert {shown(each) for each in HOSTILE} <= set(elements.texts)


def test_nothing_is_left_of_pages_that_are_not_published(tmp_path: Path) -> None:
    def fail() -> None:
        with Pages(tmp_path / "report.html") as pages:
            pages.write("channel", iter([named("a")]), KEYS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    output = tmp_path / "gone" / "report.html"
    with Pages(output) as pages, pytest.raises(PipelineError, match="could not be written to"):
        pages.write("channel", iter([named("a")]), KEYS)
