"""Faults such as somebody might make in the core of SDS: simulated groups must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from storenode.sds import channel
from storenode.sds.behind import _Lack
from storenode.sds.bloom import RollingFilter, Shape
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Claims, Proof, Verdict
from storenode.sds.clock import Clock
from storenode.sds.envelope import SdsMessage
from storenode.sds.events import Acknowledged, Event, PossiblyAcknowledged
from storenode.sds.gaps import Gaps
from storenode.sds.incoming import IncomingBuffer, Waiting
from storenode.sds.log import Log
from storenode.sds.outgoing import OutgoingBuffer
from storenode.sds.pages import LogEntry
from storenode.sds.repair import Answers, Requests
from storenode.sds.showing import Showing


def _never_due(*_: object) -> tuple[list[SdsMessage], list[Event]]:
    return [], []


def _met_by_waiting(self: IncomingBuffer, waiting: Waiting, now_ms: int) -> list[str]:
    waiting.unmet -= self.ids.keys()
    missing = _add(self, waiting, now_ms)
    if not waiting.unmet:
        self.ready[self._next - 1] = None
    return missing


_add = IncomingBuffer.add


def _at_the_end(self: Log, entry: LogEntry) -> int:
    _insert(self, entry)
    return 0


_insert = Log.insert


def _one_filter_is_enough(
    self: OutgoingBuffer,
    seen: bytes,
    shape: Shape,
    message: SdsMessage,
    *,
    needed: int,
    max_error: float,
    resend_ms: int,
) -> list[Event]:
    events: list[Event] = []
    bounds = {"needed": needed, "resend_ms": resend_ms}
    for event in _witness(self, seen, shape, message, max_error=max_error, **bounds):
        if isinstance(event, PossiblyAcknowledged):
            self.remove(event.message_id)
            events.append(Acknowledged(event.message_id))
        else:
            events.append(event)
    return events


_witness = OutgoingBuffer.witness


def _anything_goes(self: Clock, lamport: int, now_ms: int) -> bool:  # noqa: ARG001 - as replaced
    self.value = max(self.value, lamport)
    return True


def _nothing_goes(self: Clock, lamport: int, now_ms: int) -> bool:  # noqa: ARG001 - as replaced
    return True


def _set_back(self: Clock, now_ms: int) -> int:
    self.latest_ms = now_ms
    return now_ms


def _half_a_history(
    self: MessageChannel,
    now_ms: int,
    message: SdsMessage,
    hint: bytes | None,
    events: list[Event],
    *,
    own: bool,
) -> None:
    message = replace(message, history=message.history[:1])
    _take(self, now_ms, message, hint, events, own=own)


_take = MessageChannel._take
_explain = _Lack.explain


def _nothing(*_: object, **__: object) -> None:
    return None


def _no_entries(*_: object) -> list[str]:
    return []


def _offer_all(
    self: Gaps, seen: bytes, shape: Shape, sender_id: str, entries: Iterable[LogEntry], *now: int
) -> list[str]:
    found = list(entries)
    _look(self, seen, shape, sender_id, found, *now)
    return [entry.message_id for entry in found]


_look = Gaps.look


def _found_after_one_search(self: _Lack, known: int) -> None:
    _explain(self, -1 if self.searches else known)


def _same(*_: object) -> Verdict:
    return Verdict.SAME


def _always_forged(*_: object) -> Verdict:
    return Verdict.FORGED


def _all_proven(*_: object) -> Proof:
    return Proof.MESSAGE


def _never(*_: object, **__: object) -> bool:
    return False


@dataclass(frozen=True)
class GroupMutant:
    """An attribute of a class or module, what stands in for it, and what a run says of that."""

    part: object
    method: str
    fault: Callable[..., Any] | object
    finding: str
    with_store: bool = False
    compares: bool = True
    """Whether filters are compared, which heals what the fault leaves."""
    first_seed: int = 0
    """Where to begin, for a fault that shows in few runs."""


GROUP_MUTANTS = {
    "never sends again": GroupMutant(OutgoingBuffer, "due", _never_due, "does not send .* again"),
    "never meets a dependency": GroupMutant(
        IncomingBuffer, "met", _nothing, "misses .* that it has"
    ),
    "takes waiting for met": GroupMutant(
        IncomingBuffer, "add", _met_by_waiting, "comes without .* causes|before its causes"
    ),
    "inserts at the end": GroupMutant(Log, "insert", _at_the_end, "at another place"),
    "does not adopt clocks": GroupMutant(Clock, "adopt", _nothing_goes, "before what it has"),
    "adopts any clock": GroupMutant(Clock, "adopt", _anything_goes, "ms ahead"),
    "stops its timers with the clock": GroupMutant(
        Clock, "running_ms", _set_back, "sleeps for|does not send .* again"
    ),
    "never rolls its filter over": GroupMutant(
        RollingFilter, "_roll_over", _nothing, "IDs are in one filter", with_store=True
    ),
    "is sure after one filter": GroupMutant(
        OutgoingBuffer, "witness", _one_filter_is_enough, "acknowledged, and nobody has it"
    ),
    "answers what was answered": GroupMutant(Answers, "seen", _nothing, "nobody waits for that"),
    "offers what nobody lacks": GroupMutant(Gaps, "look", _offer_all, "nobody waits for that"),
    "never asks": GroupMutant(Requests, "add", _nothing, "do not become equal", first_seed=23),
    "never looks for gaps of others": GroupMutant(
        Gaps, "look", _no_entries, "do not become equal", first_seed=16
    ),
    "never shows its filter": GroupMutant(Showing, "_take", _never, "do not become equal"),
    "believes that a search has found all": GroupMutant(
        _Lack, "explain", _found_after_one_search, "has caught up and lacks"
    ),
    "takes the first of an ID for genuine": GroupMutant(
        Claims, "judge", _same, "keeps a forged message"
    ),
    "takes anything for proven": GroupMutant(
        channel, "proof_of", _all_proven, "taken for what it is not|keeps a forged message"
    ),
    "calls everything forged": GroupMutant(
        Claims, "judge", _always_forged, "calls the genuine .* forged"
    ),
    "gives others what it knows to be forged": GroupMutant(
        Answers, "drop", _nothing, "sends a forged message that it knows"
    ),
    "lets a forged message stay in its log": GroupMutant(
        Log, "remove", _nothing, "log of .* is not what it was told|AssertionError"
    ),
    "overlooks causes": GroupMutant(
        MessageChannel, "_take", _half_a_history, "synced and lacks|comes without"
    ),
}
