"""Faults in gossip, in the machine or its driver: the simulator must find each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any

from store.domain.environment import Environment
from store.domain.ports import PeerError
from store.gossip import fetch_queue, scores
from store.gossip.driver import database as database_module
from store.gossip.driver import driver as driver_module
from store.gossip.driver import streams
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.database import Answer, CommitReader, Request
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase
from store.gossip.driver.streams import PeerStream
from store.gossip.events import (
    Committed,
    Confirm,
    Effect,
    FrameIn,
    PersistBatch,
    WriteFrame,
)
from store.gossip.machine import Gossip
from store.gossip.recent_messages import Stores
from store.gossip.unread import UnreadEvents
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from storenode.wire.storenode.v1.peer_pb2 import Inventory
from tests.sim.mutant import Mutant, Plant, edit, nothing, replace_with, together

in_driver = partial(edit, GossipDriver)

Step = Callable[..., list[Effect]]

UNEQUAL = "do not become equal"
LOST = "acknowledged .* does not hold it"

_STEP, _INIT, _CHECK = Gossip.step, Gossip.__init__, Gossip.check
_RECEIVE, _LOOKED_UP = Gossip.receive, Gossip.looked_up
_CONFIRM = UnreadEvents.confirm
_ANSWER, _NUMBERS = database_module.answer, count()


def _step(step: Step) -> Plant:
    return replace_with(Gossip, "step", step)


def _effects(change: Callable[[list[Effect]], list[Effect]]) -> Plant:
    return _step(lambda self, *given: change(_STEP(self, *given)))


def _announce_early(self: Gossip, now_ns: int, *given: Any) -> list[Effect]:  # noqa: ANN401
    effects = _STEP(self, now_ns, *given)
    for effect in list(effects):
        if isinstance(effect, PersistBatch):
            effects += _STEP(self, now_ns, Gossip.commit, Committed(list(effect.batch.hashes)))
    return effects


def _pass_inventories_on(self: Gossip, key: str, frame: FrameIn) -> None:
    _RECEIVE(self, key, frame)
    if isinstance(frame, RawGossipFrame) and frame.HasField("inv"):
        self.commit(Committed(frame.inv.ids))


def _take_silence_for_a_lie(self: Gossip, *given: Any) -> list[Effect]:  # noqa: ANN401
    for peer in self._peers.values():
        self._end_overdue(peer)
    return _STEP(self, *given)


def _presume(self: Gossip, token: int, is_stored: Sequence[bool], *_: object) -> None:
    _LOOKED_UP(self, token, [True] * len(is_stored))


def _remember_everything(self: Gossip, *given: Any) -> None:  # noqa: ANN401
    _INIT(self, *given)
    self._fetches._announced_ids = 10**9


def _check_what_is_remembered(self: Gossip) -> None:
    _CHECK(self)
    most = self._bounds.announced_ids
    assert all(len(each.announced) <= most for each in self._fetches.sources.values())


def _announce_nothing(effects: list[Effect]) -> list[Effect]:
    return [
        WriteFrame(each.peer, RawGossipFrame(inv=Inventory()))
        if isinstance(each, WriteFrame) and each.frame.HasField("inv")
        else each
        for each in effects
    ]


MACHINE_MUTANTS = {
    "announces too early": Mutant(_step(_announce_early), LOST),
    "passes inventories on": Mutant(replace_with(Gossip, "receive", _pass_inventories_on), LOST),
    "forgets what was unread": Mutant(
        replace_with(Gossip, "restore", nothing), f"{UNEQUAL}: .* unread", first_seed=1
    ),
    "tells those who join nothing": Mutant(
        replace_with(Gossip, "_catch_up", nothing), UNEQUAL, first_seed=1
    ),
    "takes silence for a lie": Mutant(
        together(
            _step(_take_silence_for_a_lie),
            replace_with(fetch_queue, "MAX_FAILURES", 1),
            replace_with(scores, "UNDELIVERED_POINTS", 1_000 * scores.UNDELIVERED_POINTS),
            replace_with(scores, "UNDELIVERED_MOST_POINTS", 1_000 * scores.UNDELIVERED_POINTS),
        ),
        "accuses an honest peer",
        first_seed=1,
    ),
    "counts a liar twice": Mutant(
        replace_with(Stores, "_voice", lambda _self, _peer, store_id: store_id),
        "has confirmed .* as liar-",
        19,
    ),
    "counts announcements": Mutant(
        replace_with(
            UnreadEvents,
            "confirm",
            lambda self, digest, store_id, **report: _CONFIRM(
                self, digest, f"{store_id} {next(_NUMBERS)}", **report
            ),
        ),
        "which is no store|tells of .* confirmations",
        first_seed=25,
    ),
    "remembers everything": Mutant(
        together(
            replace_with(Gossip, "__init__", _remember_everything),
            replace_with(Gossip, "check", _check_what_is_remembered),
        ),
        "AssertionError",
        first_seed=37,
    ),
    "takes all for held": Mutant(replace_with(Gossip, "looked_up", _presume), LOST),
    "loses confirmations": Mutant(
        _effects(lambda all_: [each for each in all_ if not isinstance(each, Confirm)]),
        f"{UNEQUAL}: .* unread",
        first_seed=1,
    ),
    "announces nothing": Mutant(_effects(_announce_nothing), UNEQUAL, first_seed=1),
}


async def _answer_before_persist(
    database: DriverDatabase, environment: Environment, request: Request
) -> Answer:
    if not isinstance(request, PersistBatch):
        return await _ANSWER(database, environment, request)
    asyncio.create_task(_ANSWER(database, environment, request))  # noqa: RUF006 - the loop of a run keeps it
    return lambda machine: machine.persisted(request.token, [True] * len(request.batch))


def _silent(name: str) -> Plant:
    work: Callable[[PeerStream, GossipDriver], Coroutine[Any, Any, None]]
    work = getattr(PeerStream, name)

    async def run(self: PeerStream, user: GossipDriver) -> None:
        try:
            await work(self, user)
        except PeerError:
            await asyncio.Event().wait()

    return replace_with(PeerStream, name, run)


DRIVER_MUTANTS = {
    "confirms before it persists": Mutant(
        replace_with(driver_module, "answer", _answer_before_persist), LOST
    ),
    "loses failed answers": Mutant(
        replace_with(database_module, "NotServingError", ()),
        "has failed|request_failed",
        first_seed=1,
    ),
    "loses a cancellation": Mutant(
        edit(
            PeerStream,
            "run",
            "for task in (reader, writer):\n            task.cancel()\n"
            "        await asyncio.gather(reader, writer, return_exceptions=True)\n        ",
            "",
        ),
        "these tasks are left",
    ),
    "connects without backoff": Mutant(
        together(
            replace_with(streams, "FIRST_PAUSE_S", 0.001),
            replace_with(streams, "LONGEST_PAUSE_S", 0.001),
        ),
        "without a pause",
        first_seed=7,
        size=3,
    ),
    "asks again without a pause": Mutant(
        together(
            replace_with(database_module, "RETRY_S", 0.0),
            replace_with(driver_module, "RETRY_S", 0.0),
        ),
        "without a pause",
        14,
    ),
    "misses a wake-up": Mutant(
        replace_with(ConfirmationWaits, "_end", staticmethod(nothing)), "lacks confirmations"
    ),
    "answers publishers late": Mutant(
        edit(ConfirmationWaits, "confirmed", "timeout(limit_s)", "timeout(limit_s + 1)"),
        "too late",
        first_seed=1,
    ),
    # The machine is told that a frame was taken as soon as it is queued.
    "has an unbounded queue": Mutant(
        together(
            in_driver(
                "_act_on",
                "stream.send(frame)",
                "stream.send(frame), self._take(Gossip.sent, effect.peer)",
            ),
            replace_with(GossipDriver, "sent", nothing),
        ),
        r"keeps \d+ frames",
        10,
    ),
    # Streams wait to be joined until another one begins.
    "keeps state after an error": Mutant(
        in_driver(
            "_load",
            "self.reader.wake()",
            "self.reader.wake(), self._needs_loading.clear()",
        ),
        UNEQUAL,
        first_seed=8,
    ),
    "never reports a broken stream": Mutant(
        together(_silent("_read"), _silent("_write")), UNEQUAL, first_seed=1
    ),
    "does not announce a commit": Mutant(
        edit(
            CommitReader,
            "_describe",
            "ids, events, content_digests=batch.content_digests,",
            "[] if is_published else ids, [],",
        ),
        UNEQUAL,
        first_seed=1,
    ),
    # Writes are dropped, of which the rows stay.
    "does not adopt unread rows": Mutant(
        together(
            replace_with(database_module, "MAX_QUEUED_WRITES", 1),
            in_driver("_compare", "if unknown:", "if False:"),
        ),
        f"{UNEQUAL}: .* unread",
        first_seed=6,
    ),
}

GOSSIP_MUTANTS = MACHINE_MUTANTS | DRIVER_MUTANTS
