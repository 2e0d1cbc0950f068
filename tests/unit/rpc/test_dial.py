from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from dial.hosts import is_loopback
from store.domain.ports import PeerAddress
from store.rpc import dial
from store.rpc.dial import Callee, CallFailed, PeerCall, shown
from store.rpc.limits import MAX_PEER_TEXT_CHARS


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("node.example", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_texts_of_peers_are_cut_and_made_printable() -> None:
    assert shown("plain text: über") == "plain text: über"
    assert shown("a\nb\x1b[31m") == "a\ufffdb\ufffd[31m"
    cut = shown("x" * 10_000)
    assert len(cut) == MAX_PEER_TEXT_CHARS
    assert cut.endswith("…")


def test_addresses_as_operators_write_them() -> None:
    assert str(PeerAddress("127.0.0.1", 7420)) == "127.0.0.1:7420"
    assert str(PeerAddress("::1", 7420, "a.example")) == "a.example@[::1]:7420"


Status = tuple[grpc.StatusCode, str]
BROKEN: Status = (grpc.StatusCode.INTERNAL, "Internal error from Core")
CALLEE = Callee("b.example", "b", "0.1.0")
ENDED: Status = (grpc.StatusCode.OK, "")
REFUSED: Status = (grpc.StatusCode.ABORTED, "the other one goes first")


class BreakingCall:
    """A call of gRPC whose status changes: that of a failed write takes the place of the peer's."""

    def __init__(self, before: list[Status], after: list[Status]) -> None:
        self._before, self._after = before, after
        self._status: Status | None = None
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        assert self._status is not None
        return self._status[1]

    async def write(self, _: bytes) -> None:
        for status in self._before:
            self._set(status)
        for status in self._after:
            asyncio.get_running_loop().call_soon(self._set, status)
        raise asyncio.InvalidStateError

    def _set(self, status: Status) -> None:
        self._status = status
        for callback in self._callbacks:
            callback(self)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([REFUSED, BROKEN], []),
        ([BROKEN, REFUSED], []),
        ([BROKEN], [REFUSED]),
        ([REFUSED], [BROKEN]),
        ([], [BROKEN, REFUSED]),
    ],
)
async def test_a_write_that_fails_gives_the_status_of_the_peer(
    before: list[Status], after: list[Status]
) -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall(before, after), CALLEE)
    with pytest.raises(CallFailed, match="the other one goes first") as failure:
        await call.write(b"")
    assert failure.value.code is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("statuses", [[ENDED, BROKEN], [BROKEN, ENDED]])
async def test_a_write_into_a_call_that_ended_well(statuses: list[Status]) -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall(statuses, []), CALLEE)
    with pytest.raises(CallFailed, match="before its end"):
        await call.write(b"")


async def test_a_write_that_fails_for_no_reason_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "PEER_STATUS_TIMEOUT_S", 0.01)
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall([BROKEN], []), CALLEE)
    with pytest.raises(CallFailed, match="while a frame was sent") as failure:
        await call.write(b"")
    assert failure.value.code is grpc.StatusCode.UNAVAILABLE
