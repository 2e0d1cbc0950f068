"""A node among peers that lie, flood and fall silent: its messages, its reports, its memory."""

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

from reconcile.session import Role
from store.sync.session.exchange import RECONCILE
from storenode.client.messages import hash_of
from storenode.client.node import connect
from storenode.client.types import SyncReport
from storenode.connection.call_status import BROKEN_WRITE, Ending
from storenode.message.varint import varint
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame
from tests.faults.processes import event, log_size, memory_bytes, metrics
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
from tests.support.fleet import NS_PER_S, Fleet, hashes, holdings, made, publish
from tests.support.node import NodeProcess
from tests.support.polling import PATIENCE_S
from tests.support.reconcile_pair import memory_view

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
LARGE_BYTES = 60 * MIB
PROMISED = 200_000
CALLERS = 12
WARM_ROUNDS, ROUNDS = 3, 6
ROUND_BYTES = 16 * MIB
MAX_GROWTH_BYTES = 64 * MIB
"""The largest growth of the memory, besides the copies of a frame."""

MAX_LEFT_BYTES = 2 * ROUND_BYTES
"""The largest rest in memory: one frame of three that were kept in each round would be six."""

COPIES = 4
"""The copies of a frame in memory while it is decoded."""

REFUSED = {
    grpc.StatusCode.OK: "",
    grpc.StatusCode.INVALID_ARGUMENT: "at byte",
    grpc.StatusCode.UNAVAILABLE: "requests that have not come in full hold more than 134,217,728",
    BROKEN_WRITE[0]: BROKEN_WRITE[1],
}
"""The statuses and reasons of calls with the largest frames: a frame where all sessions are taken.
The last are slow callers, and clients that get no reason."""


@dataclass
class Siege:
    """A node, a peer that is honest, and one that does what the scripts say."""

    node: NodeProcess
    honest: NodeProcess
    hostile: str
    scripts: Scripts
    newest_ns: int
    stored: set[bytes]

    def play(self, reconcile: Script, transfer: Script | None = None) -> None:
        """Set what the hostile peer does from now on."""
        self.scripts.reconcile, self.scripts.transfer = reconcile, transfer


def payload(data: bytes) -> ReconcileFrame:
    return ReconcileFrame(ranges_data=data, session_id=SESSION_ID)


def announced(siege: Siege) -> Script:
    """Return a valid reconciliation of a peer with other messages."""
    return honest_reconcile(made(1_000, siege.newest_ns, seed=2))


def endless(ranges: int) -> Script:
    """Return a script that answers with ranges of random fingerprints."""
    step_ns = 3_000 * NS_PER_S // ranges
    rng = Random(ranges)

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        while isinstance(await context.read(), bytes):
            start = b"\x01\x00" + varint(time.time_ns() - 3_600 * NS_PER_S) + b"\x00"
            parts = (varint(step_ns) + b"\x01" + rng.randbytes(32) for _ in range(ranges))
            await context.write(payload(start + b"".join(parts)).SerializeToString())

    return script


def promises(count: int) -> Script:
    """Return a valid reconciliation over invented IDs."""
    rng, now_ns = Random(count), time.time_ns()
    ids = sorted(
        (now_ns - rng.randrange(60 * NS_PER_S, 9 * 86_400 * NS_PER_S), rng.randbytes(32))
        for _ in range(count)
    )

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        liar = Honest(Role.RESPONDER, [])
        liar._node.view = memory_view(ids)
        session_id = SESSION_ID
        while liar.result is None:
            data = await context.read()
            answer = liar.answer(ReconcileFrame.FromString(data))
            if answer is not None:
                answer.session_id, session_id = session_id, ""
                await context.write(answer.SerializeToString())

    return script


def flood(size: int) -> bytes:
    return TransferFrame(session_id=SESSION_ID).SerializeToString() + b"\x12\x00" * (size // 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> AsyncIterator[Siege]:
    scripts, newest_ns = Scripts(), time.time_ns() - 90 * NS_PER_S
    messages = made(2_000, newest_ns)
    async with AsyncExitStack() as stack:
        hostile = await stack.enter_async_context(hostile_server(scripts))
        fleet = Fleet(tmp_path_factory.mktemp("siege"), new_database=new_store)
        stack.callback(fleet.close)
        honest = fleet.start()
        node = fleet.start(peers=[hostile.target, honest.peer])
        await publish(node, messages)
        yield Siege(node, honest, hostile.target, scripts, newest_ns, hashes(messages))


async def request_sync(node: NodeProcess, peer: str) -> SyncReport:
    """Reconcile a node with a peer over all times, as ``storenode sync --from 0`` does."""
    async with connect(node.admin) as client:
        return await client.synchronize(peer, time_start=0, timeout_s=PATIENCE_S)


async def check_unharmed(siege: Siege) -> None:
    """Check that the node has its messages, and reconciles with the honest peer."""
    assert (await request_sync(siege.node, siege.honest.peer)).in_sync
    assert holdings(siege.node) == holdings(siege.honest) == siege.stored


async def test_hundreds_of_thousands_of_promises(siege: Siege) -> None:
    done = by_the_book(TransferFrame(session_id=SESSION_ID, done=True))
    siege.play(promises(PROMISED), done)
    before, logged_bytes = memory_bytes(siege.node), log_size(siege.node)
    peak = peak_from_now(siege.node)
    report = await request_sync(siege.node, siege.hostile)
    assert (report.outcome, report.in_sync) == ("done", False)
    assert report.undelivered == report.missing_here == PROMISED
    assert peak() - before < 4 * MAX_GROWTH_BYTES
    line = await event(siege.node, "session_ended", logged_bytes, role="initiator")
    assert (line["undelivered"], line["level"]) == (PROMISED, "warning")
    name = "storenode_transfer_messages_total"
    assert metrics(siege.node)[name, "received", "undelivered"] >= PROMISED
    await check_unharmed(siege)


async def test_memory_is_flat(siege: Siege) -> None:
    garbage = frames(payload(b"\x01\x00" + Random(3).randbytes(ROUND_BYTES)))
    work = {
        "at byte": (garbage, None),
        "nobody asked for": (announced(siege), frames(flood(ROUND_BYTES))),
        "64 rounds": (endless(2_000), None),
    }
    before, peak = memory_bytes(siege.node), peak_from_now(siege.node)

    async def lowest(rounds: int) -> int:
        """Return the lowest memory; higher samples include frames that are being checked."""
        seen = []
        for _ in range(rounds):
            for words, scripts in work.items():
                siege.play(*scripts)
                assert words in (await request_sync(siege.node, siege.hostile)).error
                seen.append(memory_bytes(siege.node))
        return min(seen[len(seen) // 2 :])

    warm = await lowest(WARM_ROUNDS)
    growth = await lowest(ROUNDS) - warm
    assert growth < MAX_LEFT_BYTES
    assert peak() - before < (COPIES + 3) * ROUND_BYTES
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
    assert peak() - before < COPIES * CALLERS * LARGE_BYTES // 2
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
    """Return a function for the most memory of a node from now on (Linux, proc(5))."""
    process = Path(f"/proc/{node.process.pid}")
    (process / "clear_refs").write_text("5")

    def read() -> int:
        lines = (process / "status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    return read
