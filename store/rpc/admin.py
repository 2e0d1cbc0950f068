"""``storenode.v1.Admin``: the methods of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from store.domain.ports import HistoryEntry, TopicFilter
from store.domain.query import sds_lookup
from store.rpc.call import RpcCall, RpcContext
from store.serving.failure import CallError, Code, malformed
from store.serving.methods.decode import decode, history_entries
from store.sync.schedule import PeerState, Synchronizer
from store.sync.session.report import SessionReport
from storenode.message.limits import MAX_SDS_ENTRIES, MAX_TIMESTAMP_NS
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.v1 import admin_pb2

_MAX_COUNT = 2**32 - 1
_M = TypeVar("_M", bound=Message)


async def get_status(call: RpcCall, request: bytes) -> bytes:
    """Serve ``GetStatus``, also while the node is not ready."""
    decode(admin_pb2.GetStatusRequest, request)
    return (await call.node.state()).SerializeToString()


async def watch_status(call: RpcCall, request: bytes) -> bytes:
    """Serve ``WatchStatus``: return the status once its revision is not the request's."""
    asked = decode(admin_pb2.WatchStatusRequest, request)
    await call.node.health.await_revision(asked.since_revision)
    return (await call.node.state()).SerializeToString()


async def synchronize(call: RpcCall, request: bytes) -> bytes:
    """Serve ``Synchronize``: return the report when the session has ended, however it did."""
    asked = decode(admin_pb2.SynchronizeRequest, request)
    exchange = _exchange(call.node)
    start_ns = asked.time_start if asked.HasField("time_start") else None
    end_ns = asked.time_end if asked.HasField("time_end") else None
    _check_window(start_ns, end_ns)
    return report_of(await exchange.synchronize(asked.peer, start_ns, end_ns)).SerializeToString()


async def fetch_messages(call: RpcCall, request: bytes) -> bytes:
    """Serve ``FetchMessages``: return the outcome when the peer has answered, or failed."""
    asked = decode(admin_pb2.FetchMessagesRequest, request, 4 * MAX_SDS_ENTRIES)
    exchange = _exchange(call.node)
    lookup = sds_lookup(
        asked.channel_id, history_entries("entries", asked.entries, MAX_SDS_ENTRIES), TopicFilter()
    )
    done = await exchange.fetch(asked.peer, lookup)
    return admin_pb2.FetchReport(
        peer=str(done.peer),
        held=map(_entry, done.already_stored),
        found=map(_entry, done.found),
        missing=map(_entry, done.missing),
        refused=map(_entry, done.refused),
        messages_stored=done.stored,
        notes=done.notes,
        error=done.error,
    ).SerializeToString()


def _exchange(node: RpcContext) -> Synchronizer:
    if node.read_only or node.exchange is None:
        raise CallError(
            Code.FAILED_PRECONDITION,
            "this node only reads (--read-only) and has no peers: ask a node that takes writes",
        )
    return node.exchange


def _entry(entry: HistoryEntry) -> message_pb2.HistoryEntry:
    return message_pb2.HistoryEntry(
        message_id=entry.message_id.decode(), retrieval_hint=entry.retrieval_hint
    )


def _check_window(start_ns: int | None, end_ns: int | None) -> None:
    for name, time_ns in (("time_start", start_ns), ("time_end", end_ns)):
        if time_ns is not None and time_ns < 0:
            raise malformed(f"{name} is {time_ns:,}: give nanoseconds since 1970, 0 or more")
    if start_ns is not None and (MAX_TIMESTAMP_NS if end_ns is None else end_ns) <= start_ns:
        raise malformed("time_start is not before time_end: there is nothing to reconcile")


def report_of(report: SessionReport) -> admin_pb2.SyncReport:
    """Convert the report of a session that this node began to the schema's."""
    return filled(
        admin_pb2.SyncReport,
        report,
        peer=str(report.peer),
        time_start=report.window.time_start_ns,
        time_end=report.window.time_end_ns,
        outcome=str(report.ending),
        equality=report.equality.value,
        hidden=0 if report.hidden is None else report.hidden.count,
        shown_conflicts=[
            filled(admin_pb2.ContentConflict, each) for each in report.shown_conflicts
        ],
    )


def peer_status(peer: PeerState) -> admin_pb2.PeerStatus:
    """Convert the state of a configured peer to the schema's."""
    return filled(
        admin_pb2.PeerStatus,
        peer,
        last_report=None if peer.last is None else report_of(peer.last),
        failures=min(peer.failures, _MAX_COUNT),
    )


def filled(kind: type[_M], state: object, **others: object) -> _M:
    """Return a message whose fields are ``others`` and, by their names, those of ``state``.

    A field that is a time is called ``..._ns`` there. An unknown one is an error.
    """
    for field in cast("Sequence[FieldDescriptor]", kind.DESCRIPTOR.fields):
        if field.name not in others:
            name = field.name if hasattr(state, field.name) else f"{field.name}_ns"
            others[field.name] = getattr(state, name)
    return cast("Callable[..., _M]", kind)(**others)
