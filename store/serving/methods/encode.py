"""Responses of the node as bytes, written without an object per message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from store.domain.admission import Admitted, Verdict
from store.domain.ports import QueryPage, SdsPage
from store.domain.query import OK
from store.domain.unread import Confirmation
from store.messages.frames import sds_page
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import delimited, varint
from storenode.wire.storenode.coverage.v1 import coverage_pb2
from storenode.wire.storenode.v1 import store_pb2

_Result = store_pb2.PublishResult

_FIELD_1: Final = b"\x0a"
_FIELD_3: Final = b"\x1a"
_FIELD_10_VARINT: Final = b"\x50"
_FIELD_11: Final = b"\x5a"
_FIELD_51: Final = b"\x9a\x03"
_FIELD_7420: Final = varint(7420 << 3 | 2)
_OUTCOME: Final = b"\x10"
_CONFIRMS: Final = b"\x20"

_HASH_FIELD: Final = b"\x0a" + varint(HASH_BYTES)
_SHORT: Final = b"\x0a" + varint(len(_HASH_FIELD) + HASH_BYTES + 2) + _HASH_FIELD
_STORED: Final = _OUTCOME + varint(_Result.STORED)
_DUPLICATE: Final = _OUTCOME + varint(_Result.DUPLICATE)
_EPHEMERAL: Final = _OUTCOME + varint(_Result.EPHEMERAL)
_SUCCESS: Final = _FIELD_10_VARINT + varint(OK) + delimited(_FIELD_11, b"OK")


def publish_response(
    published: Admitted, stored: Sequence[bool], confirmations: Sequence[Confirmation] = ()
) -> bytes:
    """Encode a ``PublishResponse``.

    ``stored`` says of each record of the batch whether it was new, ``confirmations`` how many
    stores confirmed it, where that was asked for.
    """
    batch = published.batch
    if not confirmations and len(batch.hashes) == len(published.verdicts) and all(stored):
        # The usual request: everything in it is new.
        return b"".join([_SHORT + digest + _STORED for digest in batch.hashes])
    if confirmations:
        results, again = _confirmed(published, stored, confirmations)
    else:
        results, again = [], []
        for digest, new in zip(batch.hashes, stored, strict=True):
            duplicate = _SHORT + digest + _DUPLICATE
            again.append(duplicate)
            results.append(_SHORT + digest + _STORED if new else duplicate)
    if len(results) == len(published.verdicts) and not published.refusals:
        return b"".join(results)
    return b"".join(_results(published, results, again))


def _confirmed(
    published: Admitted, stored: Sequence[bool], confirmations: Sequence[Confirmation]
) -> tuple[list[bytes], list[bytes]]:
    """Return the results of the first copies in a request, and those of further ones."""
    results, again = [], []
    for digest, new, found in zip(published.batch.hashes, stored, confirmations, strict=True):
        outcome = _Result.UNCONFIRMED if found.reason else _Result.DUPLICATE
        again.append(_result(digest, outcome, found.reason, found.confirms))
        if new and not found.reason:
            results.append(_result(digest, _Result.STORED, "", found.confirms))
        else:
            results.append(again[-1])
    return results, again


def _results(published: Admitted, results: list[bytes], again: list[bytes]) -> Iterable[bytes]:
    columns = zip(published.verdicts, published.positions, published.hashes, strict=True)
    for index, (verdict, position, digest) in enumerate(columns):
        if verdict is Verdict.ACCEPTED:
            yield results[position]
        elif verdict is Verdict.DUPLICATE:
            yield again[position]
        elif verdict is Verdict.EPHEMERAL:
            yield _SHORT + digest + _EPHEMERAL
        else:
            yield _result(digest, _Result.REJECTED, published.refusals[index].sentence)


def _result(
    digest: bytes, outcome: _Result.Outcome.ValueType, reason: str, confirms: int = 0
) -> bytes:
    head = _HASH_FIELD + digest if digest else b""
    tail = _CONFIRMS + varint(confirms) if confirms else b""
    why = delimited(_FIELD_3, reason.encode()) if reason else b""
    return delimited(_FIELD_1, head + _OUTCOME + varint(outcome) + why + tail)


def query_page(
    request_id: str, page: QueryPage, known: coverage_pb2.AnswerCoverage | None = None
) -> bytes:
    """Encode a ``StoreQueryResponse`` that succeeded, around the spliced entries."""
    echo = delimited(_FIELD_1, request_id.encode())
    cursor = delimited(_FIELD_51, page.next_cursor) if page.next_cursor is not None else b""
    said = b"" if known is None else delimited(_FIELD_7420, known.SerializeToString())
    return b"".join((echo, _SUCCESS, page.entries, cursor, said))


def sds_response(page: SdsPage) -> bytes:
    """Encode an ``SdsMessagesPage`` or ``CausalHistoryPage`` around the spliced entries."""
    missing = [(entry.message_id, entry.retrieval_hint) for entry in page.missing]
    return sds_page(page.messages, missing, truncated=page.truncated)
