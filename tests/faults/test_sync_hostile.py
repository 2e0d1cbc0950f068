"""A node among peers that lie, flood and fall silent: what it holds, what it tells, its memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import pytest_asyncio

from reconcile.ids import SyncIds
from reconcile.index import IndexView
from reconcile.session import Role
from store.sync.session.initiator import RECONCILE
from storenode.client.messages import hash_of
from storenode.client.types import SyncReport
from storenode.connection.ending import Ending
from storenode.message.varint import varint
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.faults.processes import metrics
from tests.faults.syncing import (
    Maker,
    asked,
    event,
    fresh_database,
    log_size,
    memory_bytes,
    sessions,
)
from tests.integration.peers.hostile import (
    LARGEST,
    METADATA,
    SESSION_ID,
    Honest,
    RawPeer,
    Script,
    Scripts,
    frames,
    honest_reconcile,
    hostile_server,
)
from tests.support.fleet import NS_PER_S, Fleet, held, publish, status, synchronize
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
LARGE_BYTES = 60 * MIB
PROMISED = 200_000
CALLERS = 12
SILENCE_S = 20
WARM_ROUNDS, ROUNDS = 6, 10
ROUND_BYTES = 16 * MIB
MAX_GROWTH_BYTES = 64 * MIB
"""Of the memory, beside the copies of a frame."""

MAX_LEFT_BYTES = 5 * ROUND_BYTES
"""Of what stays in memory: one frame of three that were kept in each round would be eight."""

COPIES = 4
"""Of a frame, in memory while it is looked at."""

REFUSED = {
    grpc.StatusCode.OK: "",
    grpc.StatusCode.INVALID_ARGUMENT: "at byte",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "calls that wait for their first frame",
    grpc.StatusCode.UNAVAILABLE: "requests that have not come in full hold more than 134,217,728",
}
"""How calls with the largest frames end, and what the node says of it. A frame says that it is
refused where all sessions are taken; the last is of those that come together slowly."""

RANGE_BYTES = 48
"""Of a range in memory: two bytes of a payload may be one."""

END = b"\x01\x00" + varint(2**63 - 1)
MUTE = (("storenode-node-id", "mute.example"), ("storenode-store-id", "mute-store"), METADATA[2])


@dataclass
class Siege:
    """A node, a peer that is honest, and one that does what the scripts say."""

    node: NodeProcess
    honest: NodeProcess
    hostile: str
    scripts: Scripts
    maker: Maker
    own: list[WakuMessageAndTopic]
    silent_callee: asyncio.Task[SyncReport]
    silent_caller: asyncio.Task[tuple[grpc.StatusCode, str]]

    def play(self, script: Case) -> None:
        """Set what the hostile peer does from now on."""
        self.scripts.reconcile, self.scripts.transfer = script.scripts(self)


@dataclass(frozen=True)
class Case:
    """What a peer does, what the report says of it, and how many bytes it makes of one frame."""

    scripts: Callable[[Siege], tuple[Script, Script | None]]
    words: str
    size: int = 0


def payload(data: bytes) -> ReconcileFrame:
    """The first answer of a responder."""
    return ReconcileFrame(ranges_data=data, session_id=SESSION_ID)


def reconcile(make: Callable[[], bytes], words: str, size: int = 0) -> Case:
    """A peer that answers with a payload."""
    return Case(lambda _: (frames(payload(make())), None), words, size)


def transfer(make: Callable[[Siege], bytes | TransferFrame], words: str, size: int = 0) -> Case:
    """A peer that announces a thousand messages, and then sends a frame."""
    return Case(lambda siege: (announced(siege), frames(make(siege))), words, size)


def announced(siege: Siege) -> Script:
    """A reconciliation by the book of a peer that holds other messages."""
    return honest_reconcile(Maker(siege.maker.newest_ns - 1).some(1_000))


def endless(ranges: int) -> Script:
    """Answers whatever comes with ranges of the last hour whose fingerprints are like no other."""
    step_ns = 3_000 * NS_PER_S // ranges
    dice = Random(ranges)

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        while isinstance(await context.read(), bytes):
            start = b"\x01\x00" + varint(time.time_ns() - 3_600 * NS_PER_S) + b"\x00"
            parts = (varint(step_ns) + b"\x01" + dice.randbytes(32) for _ in range(ranges))
            await context.write(payload(start + b"".join(parts)).SerializeToString())

    return script


def promises(count: int) -> Script:
    """A reconciliation by the book over IDs that were made up."""
    dice, now_ns = Random(count), time.time_ns()
    ids = SyncIds.of(
        sorted(
            (now_ns - dice.randrange(60 * NS_PER_S, 9 * 86_400 * NS_PER_S), dice.randbytes(32))
            for _ in range(count)
        )
    )

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        liar = Honest(Role.RESPONDER, [])
        liar._view = IndexView.of(ids)
        session_id = SESSION_ID
        while liar.result is None:
            data = await context.read()
            answer = liar.answer(ReconcileFrame.FromString(data))
            if answer is not None:
                answer.session_id, session_id = session_id, ""
                await context.write(answer.SerializeToString())

    return script


def altered(siege: Siege) -> TransferFrame:
    """What was announced, with one byte more in each message."""
    messages = Maker(siege.maker.newest_ns - 1).some(1_000)
    for each in messages:
        each.message.payload += b"!"
    return TransferFrame(session_id=SESSION_ID, messages=messages, done=True)


def flood(size: int) -> Callable[[Siege], bytes]:
    """A frame of empty messages."""
    first = TransferFrame(session_id=SESSION_ID).SerializeToString()
    return lambda _: first + b"\x12\x00" * (size // 2)


CASES = {
    "garbage": reconcile(
        lambda: b"\x01\x00" + Random(1).randbytes(LARGE_BYTES), "at byte", LARGE_BYTES
    ),
    "more than fits": reconcile(lambda: bytes(66 * MIB), "larger than max", 66 * MIB),
    "too many ranges": reconcile(lambda: b"\x01\x00" + b"\x01\x00" * 1_048_577, "1048577", 2 * MIB),
    "an enormous claim": reconcile(lambda: END + b"\x02" + varint(2**40), "claims"),
    "endless ranges": Case(lambda _: (endless(2_000), None), "64 rounds", MIB),
    "another session": transfer(
        lambda _: TransferFrame(session_id="f" * 32), "names another session"
    ),
    "a flood": transfer(flood(40 * MIB), "nobody asked for", 40 * MIB),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> AsyncIterator[Siege]:
    scripts, maker = Scripts(), Maker(time.time_ns() - 90 * NS_PER_S)
    async with AsyncExitStack() as stack:
        hostile = await stack.enter_async_context(hostile_server(scripts))
        says_nothing = Scripts(reconcile=frames(), metadata=MUTE)
        mute = await stack.enter_async_context(hostile_server(says_nothing))
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        fleet = Fleet(tmp_path_factory.mktemp("siege"))
        stack.callback(fleet.close)
        impatient = ("--peer-silence", f"{SILENCE_S}s")
        honest = fleet.start(*impatient, database_url=urls[0], peers=[mute.target])
        node = fleet.start(database_url=urls[1], peers=[hostile.target, honest.peer])
        own = maker.some(2_000)
        await publish(node, own)
        # At the other node, whose sessions no test counts: these end when they like.
        callee = asyncio.create_task(asked(honest, mute.target))
        caller = asyncio.create_task(falls_silent(honest, own[:1_000]))
        yield Siege(node, honest, hostile.target, scripts, maker, own, callee, caller)
        callee.cancel()
        caller.cancel()


async def falls_silent(
    node: NodeProcess, messages: list[WakuMessageAndTopic]
) -> tuple[grpc.StatusCode, str]:
    """Call a node, and say no more after its first answer; how the call ends."""
    identity = (
        ("storenode-node-id", "silent.example"),
        ("storenode-store-id", "silent-store"),
        METADATA[2],
    )
    async with grpc.aio.insecure_channel(node.peer, options=LARGEST) as channel:
        call = RawPeer(channel).begin(RECONCILE, identity)
        await call.write(Honest(Role.INITIATOR, messages).first())
        assert await call.read_reconcile() is not None
        return await call.call.code(), await call.call.details()


@pytest.mark.parametrize("name", CASES)
async def test_a_peer_that_breaks_the_rules(siege: Siege, name: str) -> None:
    case, node = CASES[name], siege.node
    siege.play(case)
    counted, told = sessions(node), log_size(node)
    before, peak = memory_bytes(node), peak_from_now(node)

    ended, report = await asyncio.to_thread(
        synchronize, node, "--peer", siege.hostile, "--from", "0"
    )

    assert peak() - before < COPIES * case.size + MAX_GROWTH_BYTES
    assert ended.code == 1
    assert (report["outcome"], report["in_sync"]) == ("failed", False)
    assert case.words in report["error"]
    line = await event(node, "session_ended", told, outcome="failed", role="initiator")
    assert (line["error"], line["level"]) == (report["error"], "warning")
    assert sessions(node)["initiator", "failed"] == counted.get(("initiator", "failed"), 0) + 1
    (peer,) = [each for each in status(node)["peers"] if each["address"] == siege.hostile]
    assert peer["failures"] >= 1
    assert peer["last_error"] == report["error"]
    await check_unharmed(siege)


async def check_unharmed(siege: Siege) -> None:
    """The node holds what it held, and reconciles with who is honest."""
    assert (await asked(siege.node, siege.honest.peer)).in_sync
    assert held(siege.node) == held(siege.honest) == siege.maker.made


async def test_messages_that_are_not_what_was_announced(siege: Siege) -> None:
    siege.scripts.reconcile, siege.scripts.transfer = announced(siege), by_the_book(altered(siege))
    ended, report = await asyncio.to_thread(
        synchronize, siege.node, "--peer", siege.hostile, "--from", "0"
    )
    assert ended.code == 1
    assert (report["outcome"], report["in_sync"], report["error"]) == ("done", False, "")
    assert (report["missing_here"], report["undelivered"]) == (1_000, 1_000)
    assert report["messages_received"] == 0
    assert any("nobody asked for them: 1,000" in note for note in report["notes"])
    (peer,) = [each for each in status(siege.node)["peers"] if each["address"] == siege.hostile]
    assert peer["has"] == 1_000, "as far as it says"
    await check_unharmed(siege)


async def test_hundreds_of_thousands_of_promises(siege: Siege) -> None:
    done = by_the_book(TransferFrame(session_id=SESSION_ID, done=True))
    siege.scripts.reconcile, siege.scripts.transfer = promises(PROMISED), done
    before, told = memory_bytes(siege.node), log_size(siege.node)
    peak = peak_from_now(siege.node)
    report = await asked(siege.node, siege.hostile)
    assert (report.outcome, report.in_sync) == ("done", False)
    assert report.undelivered == report.missing_here == PROMISED
    assert peak() - before < 4 * MAX_GROWTH_BYTES
    line = await event(siege.node, "session_ended", told, role="initiator")
    assert (line["undelivered"], line["level"]) == (PROMISED, "warning")
    name = "storenode_transfer_messages_total"
    assert metrics(siege.node)[name, "received", "undelivered"] >= PROMISED
    await check_unharmed(siege)


async def test_memory_is_flat(siege: Siege) -> None:
    """Behind the tests that read the log, which tells of no more than some failures at a time."""
    garbage = reconcile(lambda: b"\x01\x00" + Random(3).randbytes(ROUND_BYTES), "")
    work = [garbage, transfer(flood(ROUND_BYTES), ""), CASES["endless ranges"]]

    async def lowest(rounds: int) -> int:
        """What stays: a frame that is still looked at is in the highest."""
        seen = []
        for _ in range(rounds):
            for case in work:
                siege.play(case)
                assert not (await asked(siege.node, siege.hostile)).in_sync
                seen.append(memory_bytes(siege.node))
        return min(seen[len(seen) // 2 :])

    warm = await lowest(WARM_ROUNDS)
    growth = await lowest(ROUNDS) - warm
    print(f"{growth / MIB:.0f} MiB more than after {WARM_ROUNDS} rounds")  # noqa: T201
    assert growth < MAX_LEFT_BYTES
    await check_unharmed(siege)


async def test_many_callers_with_the_largest_frames(siege: Siege) -> None:
    first = payload(b"\x01\x00" + Random(2).randbytes(LARGE_BYTES)).SerializeToString()
    before, peak = memory_bytes(siege.node), peak_from_now(siege.node)

    async def call(number: int) -> tuple[grpc.StatusCode, str]:
        identity = (
            ("storenode-node-id", f"caller-{number}.example"),
            ("storenode-store-id", f"store-{number}"),
            METADATA[2],
        )
        own = [*LARGEST, ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(siege.node.peer, options=own) as channel:
            begun = RawPeer(channel).begin(RECONCILE, identity)
            ending = Ending(begun.call)
            with suppress(grpc.aio.AioRpcError):  # one of too many is ended before it is taken
                await begun.write(first)
                return await begun.status()
            code, sentence = await ending.status()
            return code, sentence or ""

    ends = await asyncio.gather(*(call(number) for number in range(CALLERS)))
    others = [end for end in ends if REFUSED.get(end[0], "no such status") not in end[1]]
    assert not others, "refused for what it is, as one of too many, or for want of memory"
    assert any("at byte" in sentence for _, sentence in ends)
    print(f"{(peak() - before) / MIB:.0f} MiB at most")  # noqa: T201 - shown with a failure
    assert peak() - before < COPIES * CALLERS * LARGE_BYTES // 2
    await check_unharmed(siege)


async def test_who_says_nothing_is_given_up(siege: Siege) -> None:
    """A callee and a caller that were there before all other tests."""
    report = await siege.silent_callee
    assert (report.outcome, report.in_sync) == ("failed", False)
    assert f"said nothing for {SILENCE_S} s" in report.error
    code, sentence = await siege.silent_caller
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert f"said nothing for {SILENCE_S} s" in sentence
    await check_unharmed(siege)


def by_the_book(*sent: TransferFrame) -> Script:
    """Send frames, take everything in, and wait for the end."""

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        for each in sent:
            await context.write(each.SerializeToString())
        while isinstance(data := await context.read(), bytes):
            got = TransferFrame.FromString(data).messages
            if got:
                stored = [hash_of(each) for each in got]
                await context.write(TransferFrame(stored=stored).SerializeToString())

    return script


def peak_from_now(node: NodeProcess) -> Callable[[], int]:
    """The most that a node holds in memory from now on (Linux, proc(5))."""
    process = Path(f"/proc/{node.process.pid}")
    (process / "clear_refs").write_text("5")

    def read() -> int:
        lines = (process / "status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    return read
