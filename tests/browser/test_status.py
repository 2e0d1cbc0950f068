"""The status page in a browser: what it shows is true, live, harmless, and can be read."""

from __future__ import annotations

import asyncio
import calendar
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.webdriver.common.keys import Keys

from chaos.ports import ReservedPort
from store.observe.http import STATUS_DATA_PATH, STATUS_HEADERS, asset
from tests.browser.browser import (
    HOSTILE,
    LEAST_CONTRAST,
    WIDTHS,
    Page,
    Quiet,
    host_of,
    served,
    until,
)
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.fleet import made, publish
from tests.support.node import NodeProcess, running_node
from tests.support.postgres import PostgresServer

HOUR_S: Final = 3_600


@pytest.fixture(scope="module")
def closed_port() -> ReservedPort:
    """Return a port on which no process listens."""
    return ReservedPort()


@pytest.fixture(scope="module")
def filled_s() -> int:
    """Return the hour before which the node was given messages; another may have begun since."""
    return int(time.time()) // HOUR_S * HOUR_S


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,
    template_database: str,
    closed_port: ReservedPort,
    filled_s: int,
) -> Iterator[NodeProcess]:
    """Yield a node that holds some hours and a gap, and has a peer that cannot be reached."""
    name = postgres.create_database(template_database)
    arguments = ("--max-clock-drift", "off", "--peer", closed_port.address, "--sync-interval", "1s")
    directory = tmp_path_factory.mktemp("node") / "data"
    with running_node(directory, *arguments, database_url=postgres.url(name)) as node:
        for back, count in ((1, 7), (2, 300), (6, 41)):
            newest_ns = (filled_s - (back - 1) * HOUR_S) * 10**9
            asyncio.run(publish(node, made(count, newest_ns, span_s=HOUR_S, seed=back)))
        yield node
    postgres.drop_database(name)


def hour(start_s: int) -> str:
    """Return how the page names an hour."""
    return time.strftime("%Y-%m-%d %H:00 UTC", time.gmtime(start_s))


def label_of(page: Page, start_s: int) -> str:
    """Return what the heat map says of the hour that begins then."""
    wanted = hour(start_s)
    return next((each for each in page.labels("#map td") if each and each.startswith(wanted)), "")


def tile(page: Page, name: str) -> str:
    """Return the value of one of the tiles."""
    script = (
        "return [...document.querySelectorAll('#tiles > div')]"
        ".find(each => each.children[0].textContent === arguments[0])?.children[1].textContent"
    )
    return str(page.run(script, name) or "")


def hours(page: Page) -> tuple[list[str], str, int]:
    """Return the kinds of the shown hours, the text about gaps, and the time of the data.

    All at once, since the page continues by itself.
    """
    script = (
        "const text = id => document.getElementById(id).textContent;"
        "const cells = [...document.querySelectorAll('#map td')];"
        "return [cells.map(each => each.className), text('gaps'), text('updated')];"
    )
    kinds, gaps, updated = page.run(script)
    shown = time.strptime(updated, "As of %Y-%m-%d %H:%M:%S UTC.")
    return kinds, gaps, calendar.timegm(shown)


def stored_count(node: NodeProcess) -> str:
    """Return the number of stored messages as the page shows it."""
    return f"{json.loads(get(node.metrics, STATUS_DATA_PATH)[1])['status']['messages']:,}"


def test_it_shows_what_the_node_holds_and_loads_nothing_from_elsewhere(
    page: Page, node: NodeProcess, filled_s: int
) -> None:
    page.open(node.metrics)
    until(page, lambda: tile(page, "messages") == stored_count(node), "the messages are counted")
    first = filled_s - 6 * HOUR_S
    until(page, lambda: "41 messages" in label_of(page, first), "the first hour is there")
    assert label_of(page, first + HOUR_S).endswith("gap: no messages")
    assert label_of(page, first - HOUR_S).endswith("older than the oldest message")
    assert label_of(page, filled_s - 2 * HOUR_S).endswith("300 messages")
    kinds, gaps, shown_s = hours(page)
    assert len(kinds) == 720
    ended = (shown_s - filled_s) // HOUR_S
    assert kinds.count("gap") == 3 + ended
    days = [kinds[at : at + 24] for at in range(0, 720, 24)]
    shown = sum(any(kind != "before" for kind in day) for day in days)
    drawn = "return document.querySelectorAll('#map tbody tr:not([hidden])').length"
    assert page.run(drawn) == shown < 30, "days before the first message are not drawn"
    assert kinds.count("l5") == 1
    assert f"{3 + ended} hours without messages" in gaps
    assert "the longest gap is 3 hours" in gaps
    assert tile(page, "failed calls") == "0"
    assert page.text("#database").startswith("primary")
    assert "of any topic" in page.text("#gaps")
    assert page.text("#state").startswith("ready")
    assert node.ready["node_id"] in page.text("#identity")
    asked = page.requests()
    assert {host_of(url) for url in asked if url.startswith("http")} == {node.metrics}
    assert any(url.endswith(STATUS_DATA_PATH) for url in asked)
    assert page.complaints() == []
    assert page.run("return document.cookie") == ""


def test_what_is_wrong_comes_first_and_leads_to_its_runbook(
    page: Page, node: NodeProcess, closed_port: ReservedPort
) -> None:
    page.open(node.metrics)
    until(page, lambda: closed_port.address in page.text("#problems"), "the peer is a problem")
    # The machine may have others: a volume that is nearly full.
    links = page.run("return [...document.querySelectorAll('#problems a')].map(a => a.href)")
    assert page.text("#state").startswith(f"ready, {len(links)} problem")
    assert page.driver.title.startswith(f"({len(links)}) storenode")
    (link,) = (each for each in links if each.endswith("/docs/runbooks/peer-unreachable.md"))
    top, first = (
        page.run(f"return document.querySelector('{each}').getBoundingClientRect().top")
        for each in ("#problems", "#tiles")
    )
    assert top < first
    checked = Command.of(node)("status", "--check")
    assert checked.code == 1
    assert len(checked.lines) == len(links)
    (line,) = (each for each in checked.lines if each.startswith("WARNING peer-unre"))
    assert link in line


def test_the_hours_can_be_read_by_keyboard_and_by_touch(page: Page, node: NodeProcess) -> None:
    page.open(node.metrics)
    until(page, lambda: page.labels("#map td"), "the map is there")
    page.run("document.querySelector('#map td[tabindex=\"0\"]').focus()")
    until(page, lambda: "23:00 UTC" in page.text("#detail"), "the focus is described")
    for key, hour_of_day in ((Keys.ARROW_LEFT, 22), (Keys.HOME, 0), (Keys.ARROW_RIGHT, 1)):
        page.driver.switch_to.active_element.send_keys(key)
        assert f" {hour_of_day:02}:00 UTC" in page.text("#detail")
    before = page.text("#detail")
    # At one moment, since the next look at the node hides the days before the first message again.
    above = page.run(
        "document.querySelectorAll('#map tr[hidden]').forEach(row => { row.hidden = false; });"
        "const up = new KeyboardEvent('keydown', { key: 'ArrowUp', bubbles: true });"
        "document.activeElement.dispatchEvent(up);"
        "return document.getElementById('detail').textContent;"
    )
    assert above[:10] < before[:10]
    assert page.run("return document.querySelectorAll('#map td[tabindex=\"0\"]').length") == 1
    page.run("document.querySelectorAll('#map tr:last-child td')[0].click()")
    assert " 00:00 UTC" in page.text("#detail")


def test_it_fits_and_can_be_read(page: Page, node: NodeProcess) -> None:
    page.open(node.metrics)
    until(page, lambda: "attempt failed" in page.text("#peers"), "the page is filled")
    page.require_readable(WIDTHS)
    assert page.run("return matchMedia('(prefers-color-scheme: dark)').matches")


def test_a_node_that_stops_is_missed_and_found_again(
    page: Page, tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with running_node(tmp_path / "data", database_url=new_store()) as node:
        asyncio.run(publish(node, made(9, time.time_ns(), span_s=1)))
        page.open(node.metrics)
        until(page, lambda: tile(page, "messages") == "9", "the messages are counted")
        node.terminate()
        until(page, lambda: "unreachable" in page.text("#alarm"), "the page says so")
        assert page.text("#state") == "unreachable"
        assert tile(page, "messages") == "9", "what is known stays"
        page.look("dark", 360)
        assert page.contrasts()[0][0] >= LEAST_CONTRAST
        node.start()
        until(page, lambda: page.text("#state").startswith("ready, "), "the node is back")
        assert page.text("#alarm") == ""
        asyncio.run(publish(node, made(3, time.time_ns(), span_s=1, seed=2)))
        until(page, lambda: tile(page, "messages") == "12", "the page goes on")


def showing(data: bytes) -> AbstractContextManager[str]:
    """Return the page with other data: a node that passes on what enemies have made it believe."""

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802 - the base's name
            found = (
                (data, "application/json") if self.path == STATUS_DATA_PATH else asset(self.path)
            )
            if found is None:
                self.send_error(404)
                return
            body, kind = found
            self.send_response(200)
            for name, value in (*STATUS_HEADERS, ("Content-Type", kind)):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return served(Handler)


def with_hostile_texts(given: Any, path: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return the same data with every text replaced, also where only the node itself writes."""
    if isinstance(given, dict):
        return {name: with_hostile_texts(value, name) for name, value in given.items()}
    if isinstance(given, list):
        return [with_hostile_texts(each, path) for each in given]
    return HOSTILE if isinstance(given, str) and path != "outcome" else given


def test_texts_of_peers_are_shown_and_never_obeyed(page: Page, node: NodeProcess) -> None:
    page.open(node.metrics)
    until(page, lambda: "attempt failed" in page.text("#peers"), "the peer is known")
    data = with_hostile_texts(json.loads(get(node.metrics, STATUS_DATA_PATH)[1]))
    status = data["status"]
    status["peers"][0]["last_report"]["notes"] = [HOSTILE] * 5
    status["gossip"]["peers"] = [{"node_id": HOSTILE, "reason": HOSTILE, "cut_off_until": 9e18}]
    data["calls"][HOSTILE] = 1
    status["unready"], status["ready"] = HOSTILE, False
    with showing(json.dumps(data).encode()) as origin:
        for width in WIDTHS:
            page.look("light", width)
            page.driver.get(f"{origin}/status")
            until(page, lambda: "<script>" in page.text("#peers"), "the text is shown as it is")
            assert "<img src=x" in page.text("#state")
            made = "main img, main b:not(.rate b)"
            assert page.run(f"return document.querySelectorAll('{made}').length") == 0
            assert "owned" not in page.driver.title.replace(HOSTILE, "")
            assert page.run("return document.querySelectorAll('script').length") == 1
            assert page.run("return document.documentElement.scrollWidth") <= width
        page.driver.get("about:blank")


def test_hours_show_what_other_stores_hold(page: Page, node: NodeProcess, filled_s: int) -> None:
    data = json.loads(get(node.metrics, STATUS_DATA_PATH)[1])
    start, now_hour = data["history"]["hours_start"], filled_s
    data["time"] = min(data["time"], now_hour + HOUR_S - 1)
    place = (now_hour - start) // HOUR_S
    data["coverage"] = {
        "start": start,
        "stores": [
            {
                "store_id": "0c8e5d2a-store",
                "runs": [
                    [place - 6, 1, "equal", now_hour, 0, 0, 0, now_hour],
                    [place - 5, 1, "unconfirmed", 0, 0, 0, 0, now_hour - 900],
                    [place - 3, 1, "differs", now_hour, 0, 4, 1, 0],
                    [place - 1, 1, "unconfirmed", now_hour, now_hour - 1_800, 0, 0, 0],
                ],
            }
        ],
    }
    with showing(json.dumps(data).encode()) as origin:
        page.driver.get(f"{origin}/status")
        until(page, lambda: "41 messages" in label_of(page, now_hour - 6 * HOUR_S), "it is there")
        equal = label_of(page, now_hour - 6 * HOUR_S)
        assert "41 messages; equal to store 0c8e5d2a as of" in equal
        page.run(f"document.querySelectorAll('#map td')[{place - 3}].click()")
        assert "differs from store 0c8e5d2a as of" in page.text("#detail")
        assert "UTC: 4 missing here, 1 missing there; not confirmed" in page.text("#detail")
        reached, since = (
            time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_hour - back))
            for back in (1_800, 900)
        )
        assert label_of(page, now_hour - HOUR_S).endswith(f"by other stores up to {reached} only")
        assert label_of(page, now_hour - 5 * HOUR_S).endswith(f"any other store since {since}")
        assert label_of(page, now_hour - 4 * HOUR_S).endswith("not confirmed by any other store")
        kinds = page.classes("#map td")
        marks = [kinds[place - back].partition(" ")[2] for back in (6, 5, 3, 1, 0)]
        assert marks == ["", "unsure", "differs", "unsure", ""]
        assert "differs from a peer" in page.text("#legend")
        page.driver.get("about:blank")
