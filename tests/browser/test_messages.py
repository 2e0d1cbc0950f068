"""The page of messages in a browser: history, live messages, channels, and what is missing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from chaos.ports import ReservedPort
from storenode.sds.proofs import joined, message_digest
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from tests.browser.browser import HOSTILE, WIDTHS, Page, host_of, until
from tests.integration.http.api import message
from tests.support.credentials import write_tokens
from tests.support.node import NodeProcess, running_node

TOPIC: Final = "/page/1/lobby/proto"
TOKEN: Final = "token-of-page"
LIVE: Final = "Live"


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Return a node with the page, which requires a token."""
    folder = tmp_path_factory.mktemp("page")
    write_tokens(folder, {"page": ["read", "follow", "publish"]})
    port = ReservedPort()
    listen = ("--http-listen", port.address)
    options = (*listen, "--client-token-file", str(folder / "clients.toml"))
    with running_node(folder / "node", *options, database_url=new_store()) as process:
        publish(process, *(message(TOPIC, b"line %d" % number) for number in range(120)))
        publish(process, sds("m-1"), sds("m-2", "m-1", "m-lost"), message(TOPIC, HOSTILE.encode()))
        yield process


def publish(node: NodeProcess, *messages: dict[str, Any]) -> None:
    answer = httpx.post(
        f"http://{node.http}/api/v1/messages",
        json={"messages": messages},
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    assert {each["outcome"] for each in answer.json()["results"]} == {"STORED"}


def sds(
    name: str,
    *parents: str,
    content: bytes | None = None,
    topic: str = TOPIC,
    channel: str = "room",
) -> dict[str, Any]:
    """Return an SDS message to publish."""
    body = SdsMessage(
        sender_id="ada",
        message_id=name,
        channel_id=channel,
        lamport_timestamp=len(parents) + 1,
        causal_history=[HistoryEntry(message_id=each) for each in parents],
        content=f"said in {name}".encode() if content is None else content,
    )
    return message(topic, body.SerializeToString())


def show(page: Page, node: NodeProcess, token: str = TOKEN, topic: str = TOPIC) -> None:
    """Open the page, fill it in, and ask for the messages."""
    page.driver.get(f"http://{node.http}/")
    until(page, lambda: page.text("#state") != "Connecting.", "the page has tried without a token")
    page.complaints()  # of the refusal
    for name, text in (("contentTopics", topic), ("token", token)):
        page.driver.find_element("name", name).send_keys(text)
    page.driver.find_element("css selector", "form button").click()


def rows(page: Page) -> list[str]:
    """Return the texts of the shown messages, newest first."""
    script = "return [...document.querySelectorAll('#messages > li')].map(each => each.innerText)"
    return list(page.run(script))


def test_a_topic_is_shown_and_followed(page: Page, node: NodeProcess, tmp_path: Path) -> None:
    show(page, node)
    until(page, lambda: len(rows(page)) == 100, "a page of history")
    assert page.text("#state").startswith(LIVE)
    publish(node, message(TOPIC, b"a new line"))
    until(page, lambda: "a new line" in rows(page)[0], "the new message is at the top")
    assert page.classes("#messages > li")[:2] == ["new", ""]
    page.driver.find_element("id", "older").click()
    until(page, lambda: len(rows(page)) == 124, "older messages")
    assert "line 0" in rows(page)[-1]
    assert page.run("return document.getElementById('older').hidden")
    # Messages of others are text.
    assert page.driver.title == "Messages"
    assert any(HOSTILE[:30] in each for each in rows(page))
    assert {host_of(each) for each in page.requests()} == {node.http}
    assert page.complaints() == []
    picture = tmp_path / "page.png"
    page.driver.save_screenshot(str(picture))
    assert picture.stat().st_size > 0


def choose_channel(page: Page, name: str) -> None:
    page.run(
        "const channel = document.querySelector('select');"
        "channel.value = arguments[0]; channel.dispatchEvent(new Event('change'));",
        name,
    )


def click(page: Page, selector: str, text: str) -> None:

    found = page.driver.find_elements("css selector", selector)
    next(each for each in found if each.text == text).click()


def lookups(page: Page) -> int:
    """Return how many lookups of SDS messages were requested since the last call."""
    return sum("sds/messages" in each for each in page.requests())


def test_a_channel_is_shown_with_what_is_missing(page: Page, node: NodeProcess) -> None:
    show(page, node)
    until(page, lambda: len(rows(page)) == 100, "a page of history")
    assert page.run("return document.getElementById('gaps').hidden"), "no channel was chosen yet"
    assert lookups(page) == 0
    choose_channel(page, "room")
    until(page, lambda: page.text("#missing") != "", "a missing message")
    assert page.text("#missing") == "m-lost, referenced by m-2"
    assert len(rows(page)) == 2
    assert rows(page)[0].startswith("ada")
    assert "said in m-2" in rows(page)[0]
    assert "after m-1, m-lost" in rows(page)[0]
    click(page, "#messages a", "m-1")
    assert "said in m-1" in page.run("return document.activeElement.innerText")
    publish(node, sds("m-lost"))
    until(page, lambda: page.text("#missing") == "", "it is not missing any more")
    assert len(rows(page)) == 3


def test_a_message_is_published_and_its_hash_shown_whole(page: Page, node: NodeProcess) -> None:
    show(page, node, topic="")
    page.driver.find_element("css selector", "#publish input").send_keys("from a page")
    click(page, "#publish button", "Publish")
    assert "Enter the content topic" in page.text("#outcome")
    page.driver.find_element("name", "contentTopics").send_keys("/page/1/own/proto")
    click(page, "#publish button", "Publish")
    until(page, lambda: page.text("#outcome") == "STORED", "the outcome")
    until(page, lambda: "from a page" in rows(page)[0], "the message")
    short = page.text("#messages button.id")
    assert len(short) == 8
    page.driver.find_element("css selector", "#messages button.id").click()
    whole = page.text("#messages button.id").removeprefix("0x")
    assert (len(whole), whole[:8]) == (64, short)


def test_what_its_id_does_not_prove_is_marked_and_forged_beside_what_it_proves(
    page: Page, node: NodeProcess
) -> None:
    topic, words = "/page/1/court/proto", [b"x" * size for size in (1, 55, 56, 119, 5_000)]
    own = {
        message_digest(b"room", b"ada", 2, ["né".encode()], content): content for content in words
    }
    of_content = hashlib.sha256(b"of another make").hexdigest()
    begun = joined([b"sds.v1"]) + b"of another's ID"
    genuine = [sds(name, "né", content=content, topic=topic) for name, content in own.items()]
    genuine.append(sds(of_content, content=b"of another make", topic=topic))
    publish(node, *genuine)
    show(page, node, topic=topic)
    until(page, lambda: len(rows(page)) == 6, "what is genuine")
    assert not any("not verified" in each or "FORGED" in each for each in rows(page))

    stolen = next(iter(own))
    chosen = sds("chosen", content=b"by an application", topic=topic)
    taken = sds(stolen, "né", content=b"somebody else's", topic=topic)
    digest = sds(hashlib.sha256(begun).hexdigest(), content=begun, topic=topic)
    silent = sds("silent", content=b"", topic=topic)
    publish(node, taken, chosen, digest, silent)
    until(page, lambda: len(rows(page)) == 10, "what is not")
    (forged,) = (each for each in rows(page) if "FORGED" in each)
    assert "somebody else's" in forged
    doubted = [each for each in rows(page) if "not verified" in each]
    assert len(doubted) == 2
    assert not any("silent" in each for each in doubted)

    # Read again, the forged message comes before the one that shows what it is.
    show(page, node, topic=topic)
    until(page, lambda: len(rows(page)) == 10, "all of them")
    assert [each for each in rows(page) if "FORGED" in each] == [forged]
    assert page.complaints() == []


def test_a_wrong_token_is_said(page: Page, node: NodeProcess) -> None:
    show(page, node, token="forged")
    until(page, lambda: "is not known to this node" in page.text("#state"), "the node's sentence")
    assert rows(page) == []


def test_it_can_be_read_on_every_screen(page: Page, node: NodeProcess) -> None:
    show(page, node)
    until(page, lambda: rows(page) and page.text("#state").startswith(LIVE), "messages")
    page.require_readable(WIDTHS)


def test_the_page_goes_on_after_a_restart(page: Page, node: NodeProcess) -> None:
    show(page, node)
    until(page, lambda: rows(page) and page.text("#state").startswith(LIVE), "live")
    assert node.terminate() == 0
    until(page, lambda: "was lost" in page.text("#state"), "the connection is lost")
    node.start()
    began = time.time_ns()
    publish(node, message(TOPIC, b"after %d" % began))
    until(page, lambda: f"after {began}" in rows(page)[0], "the browser has gone on by itself")
