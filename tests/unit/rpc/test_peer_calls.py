from __future__ import annotations

import grpc
import pytest

from store.domain.ports import PeerAddress
from store.rpc.peer_calls import PeerCall, PeerCallError
from store.serving.context import NodeIdentity
from store.sync.errors import MAX_PEER_TEXT_CHARS, shown
from tests.support.breaking_call import BROKEN, ENDED, ORDERS, BreakingCall, Status
from tests.support.virtual_time import virtual_time


def test_texts_of_peers_are_cut_and_made_printable() -> None:
    assert shown("plain text: über") == "plain text: über"
    assert shown("a\nb\x1b[31m") == "a\ufffdb\ufffd[31m"
    cut = shown("x" * 10_000)
    assert len(cut) == MAX_PEER_TEXT_CHARS
    assert cut.endswith("…")


async def named() -> NodeIdentity:
    return NodeIdentity("b.example", "b", "0.1.0")


@pytest.mark.parametrize(("before", "after"), ORDERS)
async def test_a_write_that_fails_gives_the_status_of_the_peer(
    before: list[Status], after: list[Status]
) -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall(before, after), named)
    with pytest.raises(PeerCallError, match="the other one goes first") as failure:
        await call.write(b"")
    assert failure.value.code is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("statuses", [[ENDED, BROKEN], [BROKEN, ENDED]])
async def test_a_write_into_a_call_that_ended_well(statuses: list[Status]) -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall(statuses, []), named)
    with pytest.raises(PeerCallError, match="before its end"):
        await call.write(b"")


@virtual_time
async def test_a_write_that_fails_for_no_reason_that_is_known() -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall([BROKEN], []), named)
    with pytest.raises(PeerCallError, match="while a frame was sent") as failure:
        await call.write(b"")
    assert failure.value.code is grpc.StatusCode.UNAVAILABLE
