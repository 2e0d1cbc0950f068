"""Stored frames as JSON.

The one place where a page is decoded: base64 leaves no other way. protobuf's C code reads a page as
a whole, and msgspec writes it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET

from store.domain.completeness import AnswerCoverage
from store.domain.ports import HistoryEntry, SdsPage
from store.http.schemas import Coverage, Message, Missing, Step, StoreCoverage, Stored
from storenode.sds.codec import decode
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.storenode.v1.store_pb2 import (
    CoveragePage,
    CoverageStep,
    ScanPage,
    SdsMessagesPage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue


def hex_of(digest: bytes) -> str:
    """Return a hash as answers spell it."""
    return f"0x{digest.hex()}"


def of_entries(entries: bytes) -> Iterator[Stored]:
    """Yield the messages of a `QueryPage`."""
    return map(_stored, StoreQueryResponse.FromString(entries).messages)


def of_frames(frames: bytes) -> Iterator[Stored]:
    """Yield the messages of a page of a scan or a follower."""
    return map(_stored, ScanPage.FromString(frames).messages)


def of_sds(page: SdsPage) -> Iterator[Stored]:
    """Yield the messages of an `SdsPage`."""
    for each in SdsMessagesPage.FromString(page.messages).messages:
        found = _stored(each.stored)
        found.message_id = each.entry.message_id
        claimed = decode(each.stored.message.payload)
        if claimed is not None:
            found.proven = claimed.proven
        yield found


def of_missing(entries: Iterable[HistoryEntry]) -> Iterator[Missing]:
    """Yield entries that are not held; an ID that is no UTF-8 cannot come from a request."""
    for entry in entries:
        hint = entry.retrieval_hint
        yield Missing(
            message_id=entry.message_id.decode(errors="replace"),
            retrieval_hint=UNSET if hint is None else hex_of(hint),
        )


def of_coverage(found: AnswerCoverage) -> Coverage:
    """Return the coverage of an answer."""
    said = Coverage(
        state=found.state.name,  # type: ignore[arg-type]
        time_start=str(found.span[0]),
        time_end=str(found.span[1]),
        reason=found.reason or UNSET,
        keyed=found.keyed,
    )
    if found.store_ids:
        said.store_ids, said.compared_at = list(found.store_ids), str(found.compared_ns)
    if found.until_ns:
        said.complete_from, said.complete_until = str(found.from_ns), str(found.until_ns)
    return said


def of_steps(page: bytes) -> Iterator[Step]:
    """Yield the steps of a ``CoveragePage``."""
    for each in CoveragePage.FromString(page).steps:
        has = each.HasField
        yield Step(
            time_start=str(each.time_start),
            time_end=str(each.time_end),
            messages=each.messages if has("messages") else UNSET,
            fingerprint=hex_of(each.fingerprint) if each.fingerprint else UNSET,
            before_horizon=each.before_horizon,
            intake=CoverageStep.Intake.Name(each.intake),  # type: ignore[arg-type]
            missing_parents=each.missing_parents if has("missing_parents") else UNSET,
            stores=[_compared(store) for store in each.stores],
        )


def _compared(store: store_pb2.StoreCoverage) -> StoreCoverage:
    has = store.HasField
    return StoreCoverage(
        store_id=store.store_id,
        state=store_pb2.StoreCoverage.State.Name(store.state),  # type: ignore[arg-type]
        compared_at=str(store.compared_at) if store.compared_at else UNSET,
        equal_until=str(store.equal_until) if store.equal_until else UNSET,
        last_equal=str(store.last_equal) if store.last_equal else UNSET,
        keyed=store.keyed,
        missing_here=store.missing_here if has("missing_here") else UNSET,
        missing_there=store.missing_there if has("missing_there") else UNSET,
    )


def _stored(item: WakuMessageKeyValue) -> Stored:
    digest = hex_of(item.message_hash)
    if not item.HasField("message"):
        return Stored(message_hash=digest)
    message = item.message
    has = message.HasField
    return Stored(
        message_hash=digest,
        pubsub_topic=item.pubsub_topic,
        message=Message(
            payload=message.payload,
            content_topic=message.content_topic,
            timestamp=str(message.timestamp),
            version=message.version if has("version") else UNSET,
            meta=message.meta if has("meta") else UNSET,
            rate_limit_proof=message.rate_limit_proof if has("rate_limit_proof") else UNSET,
            ephemeral=message.ephemeral if has("ephemeral") else UNSET,
        ),
    )
