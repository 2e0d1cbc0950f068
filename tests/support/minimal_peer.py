"""A store node of another make, in a process of its own: the published .proto files and two specs.

``python minimal_peer.py early|late|ADDRESS|gossip=ADDRESS FIRST LAST NEWEST_NS``: it holds the
messages FIRST to LAST, and prints the hash of each message that it holds. Given an ADDRESS it
reconciles with the node there, transfers, and ends; or it gossips with the node. Else it serves,
and prints its port; it names itself at once, or late, with its first answer. The stubs are
generated, and first in the path.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import grpc

from tests.support.spec_peer import LOWEST, Id, SpecPeer

pb: Any = import_module("storenode.v1.peer_pb2")
store: Any = import_module("storenode.v1.store_pb2")
stored: Any = import_module("waku.store.v3.store_pb2")
Message: Any = import_module("waku.message.v1.message_pb2").WakuMessage
Item: Any = import_module("waku.sync.transfer.v1.transfer_pb2").WakuMessageAndTopic

NAMES = tuple((f"storenode-{name}", "minimal") for name in ("node-id", "store-id", "version"))
SESSION = "6d" * 16
END: Id = (2**63 - 1, bytes(32))
PAGE = 7


def hash_of(item: Any) -> bytes:  # noqa: ANN401 - a generated class
    """Return the deterministic hash of 14/WAKU2-MESSAGE."""
    one = item.message
    parts = (item.pubsub_topic.encode(), one.payload, one.content_topic.encode(), one.meta)
    return hashlib.sha256(b"".join(parts) + one.timestamp.to_bytes(8, "big")).digest()


def made(number: int, newest_ns: int) -> Any:  # noqa: ANN401 - a generated class
    """Return a message, a millisecond older than the one before."""
    time_ns = newest_ns - number * 1_000_000
    message = Message(payload=b"%d" % number, content_topic="/minimal/1/a/b", timestamp=time_ns)
    return Item(message=message, pubsub_topic="/waku/2/rs/1/0")


def tell(line: str) -> None:
    """Report a line to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Peer:
    """The messages of a peer, and its answers to the calls of a node, with one node at a time."""

    def __init__(self, items: list[Any]) -> None:
        self.messages: dict[bytes, Any] = {}
        self.sync = SpecPeer([])
        self.lock = threading.Lock()
        self.hold(items)

    def hold(self, items: Any) -> list[bytes]:  # noqa: ANN401 - of generated classes
        """Store messages, and give their hashes."""
        with self.lock:
            for each in items:
                if hash_of(each) not in self.messages:
                    self.messages[hash_of(each)] = each
                    tell(hash_of(each).hex())
        return [hash_of(each) for each in items]

    def ids(self) -> list[Id]:
        """Return all of it in the order of time."""
        with self.lock:
            return sorted((each.message.timestamp, hash_) for hash_, each in self.messages.items())

    def reconcile(self, frames: Iterator[Any]) -> Iterator[Any]:
        """Serve a reconciliation until one side has nothing left to send."""
        self.sync = SpecPeer(self.ids(), shards=())
        for frame in frames:
            if not frame.ranges_data:
                return
            answer = self.sync.answer(frame.ranges_data)
            yield pb.ReconcileFrame(ranges_data=answer, session_id=SESSION)

    def transfer(self, frames: Iterator[Any], session: str = SESSION) -> Iterator[Any]:
        """Send all that the node lacks at once, then answer for what it sends."""
        lacking = [self.messages[hash_] for _, hash_ in sorted(self.sync.to_send)]
        yield pb.TransferFrame(session_id=session, messages=lacking, done=True)
        for frame in frames:
            if frame.messages:
                yield pb.TransferFrame(stored=self.hold(frame.messages))

    def gossip(self, frames: Iterator[Any]) -> Iterator[Any]:
        """Announce all that is stored, after the node has spoken; ask for all, answer all."""
        announced: set[bytes] = set()
        for frame in frames:
            announced_there = {*frame.inv.ids, *frame.sync_leaves.ids}
            self.hold(frame.events.messages)
            asked = [self.messages[each] for each in frame.get_events.ids if each in self.messages]
            if asked:
                yield pb.GossipFrame(events=pb.Events(messages=asked))
            if wanted := announced_there - self.messages.keys():
                yield pb.GossipFrame(get_events=pb.Inventory(ids=wanted))
            if new := self.messages.keys() - announced:
                announced |= new
                yield pb.GossipFrame(inv=pb.Inventory(ids=new))

    def scan(self, request: Any) -> Iterator[Any]:  # noqa: ANN401 - a generated class
        """Yield pages whose cursors are opaque to a node: the number of the next page, as text."""
        ids = [each for each in self.ids() if request.time_start <= each[0] < request.time_end]
        first = int(request.cursor.removeprefix(b"from number ") or 0)
        for at in range(first, len(ids), PAGE):
            page = [
                stored.WakuMessageKeyValue(
                    message_hash=hash_,
                    message=self.messages[hash_].message,
                    pubsub_topic=self.messages[hash_].pubsub_topic,
                )
                for _, hash_ in ids[at : at + PAGE]
            ]
            yield store.ScanPage(messages=page, cursor=b"from number %d" % (at + PAGE))


def named(answers: Callable[[Any], Iterator[Any]], early: bool) -> Callable[..., Iterator[Any]]:
    """Serve a call; the names of this side come before the first answer, or with it."""

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ANN401
        has_names = early
        if early:
            context.send_initial_metadata(NAMES)
        for each in answers(request):
            if not has_names:
                context.send_initial_metadata(NAMES)
                has_names = True
            yield each

    return answer


def serve(peer: Peer, early: bool) -> None:
    """Serve until the process is stopped."""

    def method(answers: Callable[[Any], Iterator[Any]], kind: Any, many: bool) -> Any:  # noqa: ANN401
        handle = (
            grpc.stream_stream_rpc_method_handler if many else grpc.unary_stream_rpc_method_handler
        )
        return handle(named(answers, early), kind.FromString, lambda each: each.SerializeToString())

    server = grpc.server(ThreadPoolExecutor(16))
    calls = {
        "Reconcile": method(peer.reconcile, pb.ReconcileFrame, many=True),
        "Transfer": method(peer.transfer, pb.TransferFrame, many=True),
        "Gossip": method(peer.gossip, pb.GossipFrame, many=True),
    }
    scan = {"Scan": method(peer.scan, store.ScanRequest, many=False)}
    handlers = grpc.method_handlers_generic_handler
    server.add_generic_rpc_handlers(
        (handlers("storenode.v1.Peer", calls), handlers("storenode.v1.Store", scan))
    )
    tell(f"port {server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    server.wait_for_termination()


def begin(channel: grpc.Channel, method: str, kind: Any) -> tuple[SimpleQueue[Any], Any]:  # noqa: ANN401
    """Call a method of a node: where to put frames, None after the last, and its answers."""
    frames: SimpleQueue[Any] = SimpleQueue()
    stub = channel.stream_stream(
        f"/storenode.v1.Peer/{method}", lambda each: each.SerializeToString(), kind.FromString
    )
    return frames, stub(iter(frames.get, None), metadata=NAMES, timeout=300)


def gossip(peer: Peer, address: str) -> None:
    """Run gossip with a node, and send first, until the process is stopped."""
    with grpc.insecure_channel(address) as channel:
        frames, answers = begin(channel, "Gossip", pb.GossipFrame)
        frames.put(pb.GossipFrame(inv=pb.Inventory(ids=peer.messages)))
        for each in peer.gossip(answers):
            frames.put(each)


def call(peer: Peer, address: str) -> None:
    """Reconcile with a node over everything, and transfer both ways."""
    with grpc.insecure_channel(address) as channel:
        frames, answers = begin(channel, "Reconcile", pb.ReconcileFrame)
        peer.sync = SpecPeer(peer.ids(), shards=())
        payload, session = peer.sync.first(LOWEST, END), ""
        frames.put(pb.ReconcileFrame(ranges_data=payload))
        for answer in answers:
            assert not answer.refusal, answer.refusal
            session = session or answer.session_id
            payload = peer.sync.answer(answer.ranges_data)
            if answer.ranges_data:
                frames.put(pb.ReconcileFrame(ranges_data=payload))
            if not payload:
                frames.put(None)
        frames, answers = begin(channel, "Transfer", pb.TransferFrame)
        mine = peer.transfer(answers, session)
        frames.put(next(mine))
        unanswered, done = {hash_ for _, hash_ in peer.sync.to_send}, False
        for frame in answers:
            if frame.messages:
                frames.put(pb.TransferFrame(stored=peer.hold(frame.messages)))
            unanswered -= {*frame.stored, *(each.message_hash for each in frame.refused)}
            done = done or frame.done
            if done and not unanswered:
                frames.put(None)


if __name__ == "__main__":
    how, first, last, newest = sys.argv[1:]
    minimal = Peer([made(number, int(newest)) for number in range(int(first), int(last))])
    if how in ("early", "late"):
        serve(minimal, how == "early")
    elif how.startswith("gossip="):
        gossip(minimal, how.removeprefix("gossip="))
    else:
        call(minimal, how)
