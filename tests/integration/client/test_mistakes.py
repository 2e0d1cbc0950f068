"""The table of docs/reference/mistakes.md: each is made, and its sentence compared.

A mistake raises an error, or logs a warning where it may heal. The seconds of the table are those
of the run that made it.
"""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pytest

from chaos.ports import ReservedPort
from storenode import AsyncClient, Channel, Client, Message
from storenode.client import StorenodeError, TlsIdentity
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.status import Status
from tests.integration.client.conftest import Secured
from tests.support.node import NodeProcess
from tests.support.pages import ROOT

TOPIC: Final = "/my-app/1/chat/proto"
SECONDS: Final = 1_795_000_000
HOUR_NS: Final = 3_600 * 10**9
NAIVE: Final = datetime(2026, 11, 28, 5)  # noqa: DTZ001 - the mistake
MOST_S: Final = 2.0
BEGIN, END = "<!-- mistakes: begin -->\n", "<!-- mistakes: end -->\n"


def _is_synced(status: Status) -> bool:
    return status.synced


@dataclass(frozen=True, slots=True)
class World:
    """The nodes that the mistakes are made with: one in clear, and one with TLS and tokens."""

    clear: NodeProcess
    secured: Secured
    topic: str
    log: Callable[[], list[str]]

    def authority(self, name: str) -> TlsIdentity:
        """Return an authority by the name of its file."""
        return TlsIdentity(ca=(self.secured.files / f"{name}.pem").read_bytes())

    def token(self, name: str) -> str:
        """Return the token of a client."""
        return (self.secured.files / f"{name}.token").read_text().strip()

    def client(
        self,
        node: object,
        call: Callable[[Client], object] = lambda client: client.query(),
        **options: Any,  # noqa: ANN401 - the client's
    ) -> None:
        """Make a call with a client."""
        with Client(node, **options) as client:  # type: ignore[arg-type] # some are mistakes
            call(client)

    def publish(self, message: object) -> None:
        """Publish a message at the node in clear."""
        self.client(self.clear.listen, lambda client: client.publish(message))  # type: ignore[arg-type]

    def channel(
        self,
        node: object,
        call: Callable[[Channel], object] = lambda channel: channel.wait_for(_is_synced),
        **options: Any,  # noqa: ANN401 - the channel's
    ) -> None:
        """Make a call with a participant."""
        with Channel.join(node, "lobby", "alice", **options) as channel:  # type: ignore[arg-type]
            call(channel)

    def sent(self, channel: Channel, content: object = b"hello") -> None:
        """Send a message, and wait until it is settled."""
        channel.send(content)  # type: ignore[arg-type]
        channel.wait_for(lambda status: not status.unpublished)

    def until_logged(self, channel: Channel) -> None:
        """Wait until the log has a warning."""
        channel.wait_for(lambda _: bool(self.log()))


def _closed_client(world: World) -> None:
    client = Client(world.clear.listen)
    client.close()
    client.query()


def _closed_channel(world: World) -> None:
    with Channel.join(world.clear.listen, "lobby", "alice") as channel:
        pass
    channel.send(b"hello")


def _page_cursor(client: Client) -> bytes:
    client.publish_many([Message(b"%d" % n, TOPIC) for n in range(3)])
    cursor = client.query(TOPIC, limit=1).cursor
    assert cursor is not None
    return cursor


def _without_await(world: World) -> None:
    client = AsyncClient(world.clear.listen)
    client.query(TOPIC)  # type: ignore[unused-coroutine] # the mistake


Make = Callable[[World], object]


def at(node: Make, **options: Make) -> tuple[Make, Make]:
    """Return a call of a client and one of a participant at a node."""

    def made_with(world: World) -> dict[str, Any]:
        return {name: option(world) for name, option in options.items()}

    def client(world: World) -> None:
        world.client(node(world), **made_with(world))

    def channel(world: World) -> None:
        address: Any = node(world)
        world.channel(StoreNode(address, **made_with(world)) if options else address)

    return client, channel


def _clear(world: World) -> str:
    return world.clear.listen


def _secured(world: World) -> str:
    return world.secured.node.listen


def _tls(world: World) -> TlsIdentity:
    return world.authority("ca")


MISTAKES: Final[list[tuple[str, Make | None, Make | None]]] = [
    (
        "no node at the address",
        lambda w: w.client(ReservedPort().address),
        lambda w: w.channel(ReservedPort().address, w.until_logged),
    ),
    ("the port of an HTTP server", *at(lambda w: w.clear.metrics)),
    ("the port of another listener of the node", *at(lambda w: w.clear.admin)),
    ("a URL for an address", *at(lambda _: "http://127.0.0.1:7420")),
    ("no node named", *at(lambda _: [])),
    ("no TLS where the node demands it", *at(_secured)),
    ("TLS where the node has none", *at(_clear, tls=_tls)),
    ("the wrong authority", *at(_secured, tls=lambda w: w.authority("stranger"))),
    ("`tls=True`", *at(_clear, tls=lambda _: True)),
    ("no token", *at(_secured, tls=_tls)),
    ("a wrong token", *at(_secured, token=lambda _: "none", tls=_tls)),
    ("a token in clear text", *at(lambda _: "10.0.0.1:7420", token=lambda _: "secret")),
    (
        "a token without the right",
        lambda w: w.client(
            w.secured.node.listen,
            lambda client: client.publish(Message(b"hello", TOPIC)),
            tls=_tls(w),
            token=w.token("reader"),
        ),
        lambda w: w.channel(StoreNode(w.secured.node.listen, w.token("reader"), _tls(w)), w.sent),
    ),
    (
        "text for bytes",
        lambda w: w.publish(Message("hello", TOPIC)),  # type: ignore[arg-type]
        lambda w: w.channel(w.clear.listen, lambda channel: w.sent(channel, "hello")),
    ),
    ("text for a message", lambda w: w.publish("hello"), None),
    (
        "seconds since 1970 for a time",
        lambda w: w.client(w.clear.listen, lambda client: client.query(start=SECONDS)),
        None,
    ),
    (
        "milliseconds for a timestamp",
        lambda w: w.publish(Message(b"hello", TOPIC, timestamp=SECONDS * 1_000)),
        None,
    ),
    (
        "a `datetime` without a zone",
        lambda w: w.client(w.clear.listen, lambda client: client.scan(start=NAIVE)),
        None,
    ),
    (
        "a range that ends before it begins",
        lambda w: w.client(w.clear.listen, lambda client: client.query(start=2, end=1)),
        None,
    ),
    (
        "a clock that is an hour ahead",
        lambda w: w.publish(Message(b"hello", TOPIC, timestamp=time.time_ns() + HOUR_NS)),
        lambda w: w.channel(w.clear.listen, w.sent, clock=lambda: time.time_ns() + HOUR_NS),
    ),
    (
        "a payload that is too large",
        lambda w: w.publish(Message(bytes(200_000), TOPIC)),
        lambda w: w.channel(w.clear.listen, lambda channel: w.sent(channel, bytes(200_000))),
    ),
    (
        "a topic of another form",
        lambda w: w.publish(Message(b"hello", "chat")),
        lambda w: w.channel(w.clear.listen, w.sent, content_topic="lobby"),
    ),
    (
        "the cursor of another call",
        lambda w: w.client(
            w.clear.listen, lambda client: list(client.scan(cursor=_page_cursor(client)))
        ),
        lambda w: w.channel(w.clear.listen, lambda channel: channel.at("m")),  # type: ignore[arg-type]
    ),
    (
        "the cursor of another store",
        lambda w: w.client(w.clear.listen, lambda client: client.query(cursor=bytes(32))),
        None,
    ),
    (
        "a hash as text",
        lambda w: w.client(w.clear.listen, lambda client: client.get(["00" * 32])),  # type: ignore[list-item]
        None,
    ),
    ("a call after `close`", _closed_client, _closed_channel),
    ("a call of `AsyncClient` without `await`", _without_await, None),
    ("an option that is none", None, lambda w: w.channel(w.clear.listen, stat="alice.db")),
    ("a client for the address", None, lambda w: w.channel(Client(w.clear.listen))),
]


@pytest.fixture
def world(
    node: NodeProcess, secured: Secured, topic: str, caplog: pytest.LogCaptureFixture
) -> World:
    caplog.set_level(logging.WARNING, "storenode")
    return World(node, secured, topic, lambda: [record.getMessage() for record in caplog.records])


def outcome_of(world: World, make: Make, clear_log: Callable[[], None]) -> tuple[str, str, float]:
    """Make a mistake, and return what reports it, the sentence, and after how many seconds."""
    clear_log()
    began_s = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            make(world)
        except StorenodeError as error:
            kind, sentence = f"`{type(error).__name__}`", getattr(error, "sentence", str(error))
        else:
            logged = [each for each in world.log() if "was not closed" not in each]
            coroutines = [str(each.message) for each in caught if each.category is RuntimeWarning]
            kind, sentence = ("warning", coroutines[0]) if coroutines else ("log", logged[0])
    seconds = time.monotonic() - began_s
    assert not [each for each in world.log() if "trying again" in each], "a pause was entered"
    return kind, _without_numbers(sentence), seconds


def _without_numbers(sentence: str) -> str:
    sentence = re.sub(r"127\.0\.0\.1:(?!7420)\d+", "HOST:PORT", sentence)
    return re.sub(r"\b3(599|600)\.\d+ s", "3,600 s", sentence)


def test_every_mistake_has_its_sentence(world: World, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[tuple[str, float]] = []
    for name, client, channel in MISTAKES:
        found: dict[tuple[str, str], tuple[list[str], float]] = {}
        for what, make in (("Client", client), ("Channel", channel)):
            if make is not None:
                kind, sentence, seconds = outcome_of(world, make, caplog.clear)
                names, longest_s = found.setdefault((kind, sentence), ([], 0.0))
                found[kind, sentence] = [*names, what], max(seconds, longest_s)
        for (kind, sentence), (names, longest_s) in found.items():
            rows.append((f"| {name} | {', '.join(names)} | {kind} | {sentence} |", longest_s))
    page = (ROOT / "docs/reference/mistakes.md").read_text()
    head = "| mistake | made with | reported by | sentence | seconds |\n|---|---|---|---|---|\n"
    fresh = head + "".join(f"{row} {seconds:.1f} |\n" for row, seconds in rows)
    shown = page.partition(BEGIN)[2].partition(END)[0]
    shown_rows = [line.rpartition("| ")[0].rstrip("| ") for line in shown.splitlines()[2:]]
    assert shown_rows == [row.rstrip("| ") for row, _ in rows], f"The page should have\n{fresh}"
    assert all(
        float(line.rpartition("| ")[2].rstrip("| ")) <= MOST_S for line in shown.splitlines()[2:]
    )
