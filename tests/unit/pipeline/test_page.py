"""The page of a report: nothing of a stranger's gets out of its place, and nothing is loaded."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_LISTED
from store.pipeline.report.arrivals import EDGES_S, Lateness, LatenessSummary
from store.pipeline.report.axis import Axis, axis_of
from store.pipeline.report.figures import (
    ArchiveComparison,
    ChannelPast,
    Completeness,
    Difference,
    Gathered,
    MissingParent,
    Place,
    ReportedPeer,
)
from store.pipeline.report.findings import GOOD, WARNING, lateness_finding
from store.pipeline.report.limits import MAX_GAPS, MAX_PEERS, MAX_RANKED, MAX_STEPS
from store.pipeline.report.names import time
from store.pipeline.report.outlook import Limits, outlook_of
from store.pipeline.report.page import page_of
from store.pipeline.report.traffic import Cell, Gap, RankedName, Ranking, Traffic
from storenode.message.limits import NS_PER_S

START = 20_000 * DAY_NS
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><a href=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{2}$",
    "&lt;b&gt;",
    "\u202egnp.exe",
    "a\nb\x1b[31m\x00",
    "",
    "x" * 121,
    "\U0001f600" * 121,
]
MAX_PAGE_BYTES = 2_600_000


def ranking(names: list[str], parts: int) -> Ranking:
    top = tuple(
        RankedName((*["/pubsub"] * (parts - 1), name), 100 - place, 5_000, START, START + place)
        for place, name in enumerate((names * MAX_RANKED)[:MAX_RANKED])
    )
    return Ranking(top, 10_000, 20_000, 400)


def traffic(shards: int, axis: Axis, names: list[str]) -> Traffic:
    cells = {
        (start, shard): Cell(1 + (start // axis.step_ns * 7 + shard * 13) % 50, 1)
        for start in axis.starts
        for shard in range(-1, shards - 1)
    }
    steps = {
        start: sum(cell.messages for (at, _), cell in cells.items() if at == start)
        for start in axis.starts
    }
    days: dict[int, tuple[int, int]] = {}
    for start, messages in steps.items():
        held = days.get(start // DAY_NS, (0, 0))
        days[start // DAY_NS] = held[0] + messages, held[1] + 10 * messages
    gaps = tuple(
        Gap(number % shards - 1, START + number * HOUR_NS, START + (number + 3) * HOUR_NS, 12)
        for number in range(MAX_GAPS)
    )
    topics, channels = ranking(names, 2), ranking(names, 1)
    return Traffic(axis, days, steps, cells, gaps, 99, topics, channels, 17)


def arrivals(axis: Axis) -> LatenessSummary:
    late = Lateness(10, 0.2, 1.0, 70.0, 4_000.0)
    return LatenessSummary(
        {"client": late, "transfer": late},
        tuple(range(len(EDGES_S) + 1)),
        dict.fromkeys(axis.starts, late),
        3,
    )


def completeness(names: list[str]) -> Completeness:
    pasts = tuple(
        ChannelPast(
            names[place % len(names)], 9, 3, 2, None if place else START, START, 5, (None, names[0])
        )
        for place in range(MAX_LISTED)
    )
    lost = tuple(
        MissingParent(names[place % len(names)], names[0], 2, names[-1], names[-1], START, None)
        for place in range(MAX_LISTED)
    )
    return Completeness(1_000, 154, 200, 1, pasts, lost)


def gathered(shards: int = 3, names: list[str] = HOSTILE, steps: int = MAX_STEPS) -> Gathered:
    axis = axis_of(START, START + steps * HOUR_NS - 1)
    found = traffic(shards, axis, names)
    limits = Limits(30 * DAY_NS, 10**9, 10**9)
    outlook = outlook_of({day: count for day, (count, _) in found.days.items()}, 10**6, limits)
    listed = tuple(Difference(START + hour * HOUR_NS, 1, 2) for hour in range(MAX_LISTED))
    peers = tuple(
        ReportedPeer(names[place % len(names)], True, START, 2, names[place % len(names)], 1, 2)
        for place in range(MAX_PEERS)
    )
    return Gathered(
        "/archive/" + names[0],
        START + 10 * DAY_NS,
        found,
        ArchiveComparison(500, 200, listed),
        arrivals(axis),
        (Place("the archive", limits, outlook),),
        completeness(names),
        "127.0.0.1:7421",
        peers,
        MAX_PEERS + 1,
    )


class Elements(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


SMALL = gathered(1, ["room"], 24)
"""Where it does not matter how much there is to draw."""

BARE = replace(SMALL, traffic=None, arrivals=None)
"""Where nothing need be drawn."""


@cache
def full_page() -> str:
    """A page with as much on it as there can be, and names that strangers chose."""
    return page_of(gathered())


@cache
def elements() -> Elements:
    return Elements(full_page())


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image"}
    assert not forbidden & set(elements().tags)
    for name, value in elements().attributes:
        assert not name.startswith("on")
        assert name not in {"src", "srcset", "action", "data", "xmlns", "xmlns:xlink"}
        if name.endswith("href"):
            assert value.startswith("#")
    assert "http:" not in full_page()
    assert "https:" not in full_page()
    assert "@import" not in full_page()
    assert "default-src 'none'" in full_page()
    assert set(re.findall(r"url\((.)", full_page())) <= {"#"}


def test_names_of_strangers_are_text_and_nothing_else() -> None:
    tame = Elements(page_of(gathered(names=["room"] * len(HOSTILE))))
    assert elements().tags == tame.tags
    for name in ("<script>alert(1)</script>", "{{ 7 * 7 }}{% raw %}", "&lt;b&gt;"):
        assert name in elements().texts
    for escape in (r"\u202egnp.exe", r"a\nb\x1b[31m\x00", "(empty)", "x" * 120 + "…"):
        assert escape in elements().texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", full_page())


@pytest.mark.parametrize(
    ("what", "of"), [("channel", "SDS messages"), ("content topic", "messages")]
)
def test_a_ranking_says_of_the_largest_what_its_table_does(what: str, of: str) -> None:
    title = re.search(rf"The largest of [0-9,]+ {what}s has ([0-9]+)% of the {of}<", full_page())
    assert title is not None
    share = re.search(r'<td class="number">([0-9.]+)%</td>', full_page()[title.end() :])
    assert share is not None
    assert int(title[1]) == round(float(share[1]))


def test_every_name_within_the_page_is_there_once_and_what_leads_to_one_does() -> None:
    ids = [value for name, value in elements().attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', full_page()))
    assert {"completeness", "gaps", "lateness", "growth", "peers"} <= wanted <= set(ids)


def test_drawings_have_the_colours_of_the_page() -> None:
    style, _, body = full_page().partition("</style>")
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"#[0-9a-f]{6}\b", body)) <= {"#000000", "#ffffff"}
    assert set(re.findall(r"var\((--\w+)\)", body)) <= set(re.findall(r"(--\w+):", style))


def test_every_chart_is_named() -> None:
    charts = re.findall(r"<svg([^>]*)>", full_page())
    assert len(charts) == 5
    assert all('role="img"' in each and "aria-label=" in each for each in charts)
    assert all("viewBox=" in each for each in charts), "it fits every width"


def test_the_largest_page_is_bounded() -> None:
    page = page_of(gathered(65, ["\U0001f600" * 121] * 15))
    assert len(page.encode()) < MAX_PAGE_BYTES


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (BARE, "holds no messages of this time"),
        (replace(SMALL, arrivals=None), "an archive does not hold when messages were stored"),
        (replace(BARE, node=None), "only a node knows its peers"),
        (replace(BARE, peers=(), peer_count=0), "The node has no peers"),
        (replace(SMALL, compared=None), "Gaps"),
        (replace(SMALL, compared=ArchiveComparison(0, 0, ())), "holds no hour that is over"),
        (
            replace(SMALL, arrivals=LatenessSummary({}, (0,) * (len(EDGES_S) + 1), {}, 5)),
            "Of no message is it known",
        ),
        (gathered(1, [""], 1), "Messages per hour"),
    ],
)
def test_what_is_not_there_is_said_in_words(part: Gathered, told: str) -> None:
    page = page_of(part)
    assert told in page
    assert Elements(page).tags[0] == "html"


def test_peers_that_never_reconciled_come_first_to_mind() -> None:
    peers = (
        ReportedPeer("two@h:1", False, 0, 3, "gone", 0, 0),
        ReportedPeer("one@h:1", True, START, 0, "", 0, 0),
    )
    page = page_of(replace(BARE, peers=peers, peer_count=2))
    assert "1 of 2 peers never reconciled with the node since it started: two@h:1." in page
    assert "Failing: two@h:1." in page
    for label in ("It lacks", "It has more"):
        assert f'<td data-label="{label}" class="number">\u2013</td>' in page
    recent = (ReportedPeer("one@h:1", True, START + 10 * DAY_NS - 60 * NS_PER_S, 0, "", 0, 0),)
    page = page_of(replace(BARE, peers=recent, peer_count=1))
    assert "the one longest ago 60 s before this report." in page


def test_what_a_channel_lacks_is_said_with_since_when_and_by_whom() -> None:
    past = ChannelPast("room", 90, 3, 7, START, START + HOUR_NS, 4, ("alice", None))
    lost = MissingParent("room", "m-1", 2, "m-2", "alice", START + HOUR_NS, None)
    found = Completeness(
        2, 3, 7, 0, (past, ChannelPast("ok", 5, 0, 0, START, None, 0, ())), (lost,)
    )
    page = page_of(replace(SMALL, completeness=found))
    told = (
        f"3 messages that others name as parents are missing, first named"
        f" {time(START + HOUR_NS)} in room; 7 messages with an incomplete past."
    )
    assert told in page
    rows = Elements(page[page.index('id="completeness"') : page.index('id="traffic"')]).texts
    wanted = ["room", time(START), "3", time(START + HOUR_NS), "alice, (no sender) and 2 more"]
    assert [each for each in rows if each in wanted][: len(wanted)] == wanted
    assert "1 further channel lacks nothing." in rows
    assert '<a href="#lost-1">3</a>' in page
    said = [each for each in rows if each]
    first = said.index("m-1")
    wanted = ["m-1", "room", time(START + HOUR_NS), "m-2", "alice", "2"]
    assert said[first : first + len(wanted)] == wanted
    whole = replace(found, missing=0, incomplete=0, pasts=(), lost=())
    page = page_of(replace(BARE, completeness=whole))
    assert "Every message that another names is held, in 2 channels." in page


@pytest.mark.parametrize(("late", "kind"), [(4, GOOD), (5, WARNING)])
def test_lateness_is_a_warning_from_a_share_on(late: int, kind: str) -> None:
    classes = [0] * (len(EDGES_S) + 1)
    classes[1], classes[EDGES_S.index(60.0) + 1] = 100 - late, late
    found = lateness_finding(LatenessSummary({}, tuple(classes), {}, 0))
    assert (found.kind, f"{late}.0% later than 60 s" in found.text) == (kind, True)


def test_steps_say_what_they_are_under_the_pointer() -> None:
    found = gathered()
    assert found.traffic is not None
    start = found.traffic.axis.starts[3]
    told = f"<title>{time(start)}: {found.traffic.steps[start]:,} messages</title>"
    assert full_page().count(told) == 1
