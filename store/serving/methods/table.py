"""What a caller needs for each method of ``Store``, over gRPC as over HTTP.

Source: the contract, `store.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.domain.access import Right
from store.domain.quota import CallKind
from store.serving.limits import MAX_SMALL_REQUEST_BYTES
from storenode.message.limits import MAX_REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Method:
    """What must be known of a method before it is called.

    ``right``: what a caller needs; None lets everybody in, without a look at tokens.
    ``peers``: peers may call it. ``peers_only``: nobody else may. ``endless``: it goes on until
    somebody ends it. ``always``: it is served although the node is not ready. ``timed``: its
    duration is a read's.
    """

    name: str
    right: Right | None
    kind: CallKind
    peers: bool = False
    peers_only: bool = False
    endless: bool = False
    always: bool = False
    timed: bool = False
    max_request_bytes: int = MAX_SMALL_REQUEST_BYTES

    @property
    def traced(self) -> bool:
        """True for what applications ask, and what ends; probes and peers are left out."""
        return not (self.right is None or self.endless or self.always or self.peers_only)


def _read(
    name: str, kind: CallKind = CallKind.STREAM, size_bytes: int = MAX_SMALL_REQUEST_BYTES
) -> Method:
    return Method(name, Right.READ, kind, peers=True, timed=True, max_request_bytes=size_bytes)


def _write(name: str, kind: CallKind) -> Method:
    return Method(name, Right.PUBLISH, kind, max_request_bytes=MAX_REQUEST_BYTES)


PUBLISH: Final = _write("Publish", CallKind.CALL)
PUBLISH_STREAM: Final = _write("PublishStream", CallKind.STREAM)
QUERY: Final = _read("Query", CallKind.CALL, MAX_REQUEST_BYTES)
SCAN: Final = _read("Scan")
FOLLOW: Final = Method("Follow", Right.FOLLOW, CallKind.STREAM, peers=True, endless=True)
SDS_MESSAGES: Final = _read("GetSdsMessages", size_bytes=MAX_REQUEST_BYTES)
CAUSAL_HISTORY: Final = _read("GetCausalHistory", size_bytes=MAX_REQUEST_BYTES)
COVERAGE: Final = _read("GetCoverage")
