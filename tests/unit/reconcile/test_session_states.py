"""Inputs in all states: allowed as in the table of transitions, or refused without effect."""

from __future__ import annotations

import pytest

from reconcile.codec import MalformedPayloadError
from reconcile.errors import SessionLimitError
from reconcile.limits import SessionLimits
from reconcile.session import Effect, Input, ReadEffect, Role, SessionConfig, SessionStateError
from reconcile.session import PayloadReceived as Received
from reconcile.session import ReadAnswered as Answered
from reconcile.session import ReconcileSession as Session
from reconcile.session import SendPayload as Send
from reconcile.session import SessionBegin as Begin
from reconcile.session import SessionEnded as Ended
from reconcile.session import TimePassed as Ticked
from tests.support.naive_view import NaiveView
from tests.support.reconcile_pair import CLUSTER, EVERYTHING, SHARDS, initiator
from tests.support.spec_peer import SpecPeer

STORED = [(n, bytes([n]) * 32) for n in range(1, 200)]
VIEW = NaiveView(STORED)
ASKED = SpecPeer(STORED[:-3]).first(*EVERYTHING)
SECOND = 1_000_000_000


def session(role: Role, max_seconds: int = 600) -> Session:
    window = EVERYTHING if role is Role.INITIATOR else None
    limits = SessionLimits(max_seconds=max_seconds)
    return Session(
        role, SessionConfig(cluster=CLUSTER, shards=SHARDS, window=window, limits=limits)
    )


def in_state(role: Role, state: str) -> tuple[Session, list[Effect]]:
    """Return a session in a state, and the effects of the last step."""
    made = session(role)
    if state == "new":
        return made, []
    effects = made.step(0, Begin() if role is Role.INITIATOR else Received(ASKED))
    if state == "reading":
        return made, effects
    while isinstance(effects[0], ReadEffect):
        effects = made.step(0, Answered(VIEW.answer(effects[0].read)))
    if state == "waiting":
        return made, effects
    return made, made.step(0, Received(b""))


ALLOWED: dict[tuple[Role, str], tuple[type[Input], ...]] = {
    (Role.INITIATOR, "new"): (Begin, Ticked),
    (Role.INITIATOR, "reading"): (Answered, Ticked),
    (Role.INITIATOR, "waiting"): (Received, Ticked),
    (Role.INITIATOR, "ended"): (),
    (Role.RESPONDER, "new"): (Received, Ticked),
    (Role.RESPONDER, "reading"): (Answered, Ticked),
    (Role.RESPONDER, "waiting"): (Received, Ticked),
    (Role.RESPONDER, "ended"): (),
}


@pytest.mark.parametrize(("role", "state"), ALLOWED)
def test_what_is_not_allowed_changes_nothing(role: Role, state: str) -> None:
    made, effects = in_state(role, state)
    answer = (
        VIEW.answer(effects[0].read) if effects and isinstance(effects[0], ReadEffect) else None
    )
    inputs: list[Input] = [Begin(), Received(ASKED), Ticked()]
    inputs.append(Answered(answer or VIEW.answer(ReadEffect(SOME_READ).read)))
    allowed = ALLOWED[role, state]
    for given in inputs:
        if not isinstance(given, allowed):
            with pytest.raises(SessionStateError, match=f"{role.value} that is {state}"):
                made.step(0, given)
            made.check()
    for given in inputs:
        if isinstance(given, allowed):
            fresh, _ = in_state(role, state)
            fresh.step(0, given)
            fresh.check()
            made.step(0, given)
            break


SOME_READ = in_state(Role.INITIATOR, "reading")[1][0].read  # type: ignore[union-attr]


def test_the_end_is_said_once_and_last() -> None:
    made, effects = in_state(Role.RESPONDER, "ended")
    assert [type(effect) for effect in effects] == [Ended]
    assert made.ended
    finished = session(Role.RESPONDER)
    equal = SpecPeer(STORED).first(*EVERYTHING)
    effects = finished.step(0, Received(equal))
    while isinstance(effects[0], ReadEffect):
        effects = finished.step(0, Answered(VIEW.answer(effects[0].read)))
    assert [type(effect) for effect in effects] == [Send, Ended]


def test_a_payload_that_is_refused_ends_the_session() -> None:
    made, _ = in_state(Role.INITIATOR, "waiting")
    with pytest.raises(MalformedPayloadError):
        made.step(0, Received(b"\x01"))
    assert made.ended
    with pytest.raises(SessionStateError):
        made.step(0, Ticked())


def test_the_time_limit_counts_from_the_first_step() -> None:
    made = session(Role.INITIATOR, max_seconds=5)
    made.step(100 * SECOND, Begin())
    assert made.step(105 * SECOND, Ticked()) == []
    with pytest.raises(SessionLimitError, match="5 seconds"):
        made.step(106 * SECOND + 1, Ticked())
    assert made.ended


def test_time_runs_for_every_input() -> None:
    made = session(Role.INITIATOR, max_seconds=5)
    (effect,) = made.step(0, Begin())
    assert isinstance(effect, ReadEffect)
    with pytest.raises(SessionLimitError):
        made.step(9 * SECOND, Answered(VIEW.answer(effect.read)))


def test_a_window_belongs_to_the_initiator_alone() -> None:
    for role, window in ((Role.INITIATOR, None), (Role.RESPONDER, EVERYTHING)):
        with pytest.raises(ValueError, match="window"):
            Session(role, SessionConfig(cluster=CLUSTER, shards=SHARDS, window=window))


def test_a_window_that_begins_late_is_led_to_by_a_skip() -> None:
    node = initiator(VIEW, window=((100, bytes(32)), (150, bytes(32))))
    sent = node.give(Begin())
    assert sent is not None
    assert sent.payload[:6] == bytes([1, 2, 0, 3, 100, 0])
    assert sent.count == 50
