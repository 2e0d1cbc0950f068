"""The schema's classes that callers of the client meet; they need not import the schema itself."""

from google.protobuf.message import Message

from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.admin_pb2 import (
    DatabaseStatus,
    NodeStatus,
    PeerStatus,
    ResumeStatus,
    SyncReport,
)
from storenode.wire.storenode.v1.store_pb2 import (
    CausalHistoryPage,
    CoverageStep,
    FollowPage,
    PublishRequest,
    PublishResponse,
    PublishResult,
    ScanPage,
    SdsMessagesPage,
    SdsStoredMessage,
    StoreCoverage,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

__all__ = [
    "AnswerCoverage",
    "CausalHistoryPage",
    "CoverageStep",
    "DatabaseStatus",
    "FollowPage",
    "HistoryEntry",
    "Message",
    "NodeStatus",
    "PeerStatus",
    "PublishRequest",
    "PublishResponse",
    "PublishResult",
    "ResumeStatus",
    "ScanPage",
    "SdsMessagesPage",
    "SdsStoredMessage",
    "StoreCoverage",
    "StoreQueryResponse",
    "SyncReport",
    "WakuMessage",
    "WakuMessageAndTopic",
    "WakuMessageKeyValue",
]
