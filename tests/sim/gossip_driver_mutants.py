"""Faults in the shipped driver of gossip, one each, such as somebody might make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from store.domain.environment import Environment
from store.domain.ports import PeerFailed, Source
from store.domain.unread import Confirmation
from store.gossip.commits import CommittedMessages, OwnBatch
from store.gossip.driver import commits, connecting, requests
from store.gossip.driver import driver as driver_module
from store.gossip.driver.commits import CommitReader
from store.gossip.driver.confirmations import DEFAULT_TIMEOUT_S, ConfirmationWaits
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import Database
from store.gossip.driver.requests import Answer, Request
from store.gossip.driver.stream import PeerStream, StreamUser
from store.gossip.events import Committed, Input, Persist, Persisted, Send, Sent
from tests.sim.planting import Mutant

Steps = Callable[[PeerStream, StreamUser], Coroutine[Any, Any, None]]


def answers_before_persist(patch: pytest.MonkeyPatch) -> None:
    real, under_way = requests.answer, set[asyncio.Task[Answer]]()

    async def answer(database: Database, environment: Environment, request: Request) -> Answer:
        if not isinstance(request, Persist):
            return await real(database, environment, request)
        under_way.add(asyncio.create_task(real(database, environment, request)))
        return Persisted(request.token, [True] * len(request.batch))

    patch.setattr(driver_module, "answer", answer)


def loses_failed_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "DATABASE_AWAY", ())


def loses_the_cancellation_of_its_streams(patch: pytest.MonkeyPatch) -> None:
    async def run(self: PeerStream, user: StreamUser) -> None:
        reader = asyncio.create_task(self._read(user))
        writer = asyncio.create_task(self._write(user))
        await asyncio.wait({reader, writer, self._closed}, return_when=asyncio.FIRST_COMPLETED)
        for ended in (self._closed, reader, writer):
            if ended.done():
                ended.result()

    patch.setattr(PeerStream, "run", run)


def connects_without_backoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connecting, "FIRST_PAUSE_S", 0.001)
    patch.setattr(connecting, "LONGEST_PAUSE_S", 0.001)


def asks_the_database_again_without_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "WRITE_RETRY_S", 0.0)
    patch.setattr(commits, "RETRY_S", 0.0)
    patch.setattr(driver_module, "LOAD_RETRY_S", 0.0)


def misses_the_wake_up_of_publishers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConfirmationWaits, "_end", staticmethod(lambda _wait, _reason: None))


def answers_publishers_late(patch: pytest.MonkeyPatch) -> None:
    confirmed = ConfirmationWaits.confirmed

    async def late(
        self: ConfirmationWaits,
        hashes: Sequence[bytes],
        stored: Sequence[bool],
        asked: int,
        most_s: float | None,
    ) -> list[Confirmation]:
        given_s = DEFAULT_TIMEOUT_S if most_s is None else most_s
        return await confirmed(self, hashes, stored, asked, given_s + 1)

    patch.setattr(ConfirmationWaits, "confirmed", late)


def sends_without_waiting(patch: pytest.MonkeyPatch) -> None:
    """The machine is told that a frame was taken as soon as it is queued."""
    send = GossipDriver._send

    def eager(self: GossipDriver, effect: Send) -> None:
        send(self, effect)
        self._take(Sent(effect.peer))

    patch.setattr(GossipDriver, "_send", eager)
    patch.setattr(GossipDriver, "sent", lambda _self, _stream: None)


def keeps_streams_of_a_load_that_failed(patch: pytest.MonkeyPatch) -> None:
    """They wait to be joined until another stream begins."""
    real = GossipDriver._load

    async def load(self: GossipDriver) -> None:
        newest = self._database.messages.newest

        async def forgetful(limit: int) -> CommittedMessages:
            self._needs_loading.clear()
            return await newest(limit)

        patch.setattr(self._database.messages, "newest", forgetful)
        await real(self)

    patch.setattr(GossipDriver, "_load", load)


def never_reports_a_broken_stream(patch: pytest.MonkeyPatch) -> None:
    def silent(work: Steps) -> Steps:
        async def run(self: PeerStream, user: StreamUser) -> None:
            try:
                await work(self, user)
            except PeerFailed:
                await asyncio.Event().wait()

        return run

    patch.setattr(PeerStream, "_read", silent(PeerStream._read))
    patch.setattr(PeerStream, "_write", silent(PeerStream._write))


def does_not_announce_what_clients_store(patch: pytest.MonkeyPatch) -> None:
    real = CommitReader._inputs_of

    def inputs_of(self: CommitReader, own: OwnBatch) -> Iterator[Input]:
        for given in real(self, own):
            if not (isinstance(given, Committed) and own.source is Source.CLIENT):
                yield given

    patch.setattr(CommitReader, "_inputs_of", inputs_of)


def does_not_adopt_unread_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GossipDriver, "_adopt", lambda _self, _newest: None)


UNEQUAL = "do not become equal"

DRIVER_MUTANTS = {
    "confirms before it persists": Mutant(
        answers_before_persist, "acknowledged .* does not hold it"
    ),
    "loses failed answers": Mutant(loses_failed_answers, "has failed|request_failed"),
    "loses a cancellation": Mutant(loses_the_cancellation_of_its_streams, "these tasks are left"),
    "connects without backoff": Mutant(connects_without_backoff, "without a pause"),
    "asks again without a pause": Mutant(
        asks_the_database_again_without_a_pause, "without a pause", 14
    ),
    "misses a wake-up": Mutant(misses_the_wake_up_of_publishers, "lacks confirmations"),
    "answers publishers late": Mutant(answers_publishers_late, "too late"),
    "has an unbounded queue": Mutant(sends_without_waiting, "frames to send", 10),
    "keeps state after an error": Mutant(keeps_streams_of_a_load_that_failed, UNEQUAL),
    "never reports a broken stream": Mutant(never_reports_a_broken_stream, UNEQUAL),
    "does not announce a commit": Mutant(does_not_announce_what_clients_store, UNEQUAL),
    "does not adopt unread rows": Mutant(
        does_not_adopt_unread_rows, f"{UNEQUAL}|lacks confirmations", 135
    ),
}
