"""The generated package: names that clients see, and the private schema's likeness."""

from importlib import import_module

import pytest
from google.protobuf.message import Message

from storenode.wire.sds.v1 import message_pb2 as sds_pb2
from storenode.wire.storenode.internal.v1 import (
    gossip_raw_pb2,
    message_raw_pb2,
    publish_raw_pb2,
    sds_raw_pb2,
    transfer_raw_pb2,
    waku_protocols_pb2,
)
from storenode.wire.storenode.v1 import peer_pb2, store_pb2
from storenode.wire.waku.message.v1 import message_pb2 as waku_pb2
from storenode.wire.waku.store.v3 import store_pb2 as query_pb2
from storenode.wire.waku.sync.transfer.v1 import transfer_pb2
from tools.rooms import ROOT

MODULES = [
    import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted((ROOT / "storenode/wire").rglob("*_pb2.py"))
]


def shape(message: type[Message], *without: int) -> dict[int, tuple[object, ...]]:
    return {
        field.number: (field.name, field.type, field.is_repeated, field.has_presence)
        for field in message.DESCRIPTOR.fields
        if field.number not in without
    }


def test_every_public_schema_names_its_packages_in_other_languages() -> None:
    names = {"csharp_namespace", "go_package", "java_multiple_files", "java_outer_classname"}
    for module in MODULES:
        if not module.DESCRIPTOR.package.endswith("internal.v1"):
            given = {field.name for field, _ in module.DESCRIPTOR.GetOptions().ListFields()}
            assert given == names | {"java_package", "objc_class_prefix"}, module.__name__


def test_descriptors_keep_the_paths_of_the_schemas() -> None:
    schemas = {
        path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto").rglob("*.proto")
    }
    assert {module.DESCRIPTOR.name for module in MODULES} == schemas


@pytest.mark.parametrize(
    ("raw", "public", "names"),
    [
        (sds_raw_pb2.RawSdsMessage, sds_pb2.Message, {11: "causal_history", 13: "repair_request"}),
        (publish_raw_pb2.RawPublishRequest, store_pb2.PublishRequest, {1: "messages"}),
        (transfer_raw_pb2.RawTransferFrame, peer_pb2.TransferFrame, {2: "messages"}),
    ],
)
def test_a_raw_message_differs_in_what_it_has_as_bytes_only(
    raw: type[Message], public: type[Message], names: dict[int, str]
) -> None:
    assert shape(raw, *names) == shape(public, *names)
    for number, name in names.items():
        field = raw.DESCRIPTOR.fields_by_number[number]
        assert (field.name, field.type, field.is_repeated) == (name, field.TYPE_BYTES, True)


NAMED_OTHERWISE = {"status_description", "relay_peers"}
"""Names of the gateway's protocols, of which the second is not in a node's answer."""


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        (message_raw_pb2.RawMessage, waku_pb2.WakuMessage),
        (message_raw_pb2.RawMessageAndTopic, transfer_pb2.WakuMessageAndTopic),
        (message_raw_pb2.RawEntry, query_pb2.WakuMessageKeyValue),
        (message_raw_pb2.RawScanPage, store_pb2.ScanPage),
        (message_raw_pb2.RawScanPage, store_pb2.FollowPage),
        (waku_protocols_pb2.WakuResponse, query_pb2.StoreQueryResponse),
        (waku_protocols_pb2.QueriedPage, query_pb2.StoreQueryResponse),
        (waku_protocols_pb2.PublishedMessages, store_pb2.PublishRequest),
    ],
)
def test_a_part_of_a_message_has_the_names_and_numbers_of_the_whole(
    part: type[Message], whole: type[Message]
) -> None:
    for field in part.DESCRIPTOR.fields:
        known = whole.DESCRIPTOR.fields_by_number.get(field.number)
        if field.name not in NAMED_OTHERWISE:
            assert known is not None, field.full_name
            assert (known.name, known.is_repeated) == (field.name, field.is_repeated)


def test_the_raw_gossip_frame_differs_in_its_messages_only() -> None:
    frames = gossip_raw_pb2.RawGossipFrame, peer_pb2.GossipFrame
    assert shape(frames[0]) == shape(frames[1])
    kinds = [[field.message_type for field in kind.DESCRIPTOR.fields] for kind in frames]
    assert kinds[0][1:] == kinds[1][1:]
    (messages,) = gossip_raw_pb2.RawEvents.DESCRIPTOR.fields
    (published,) = peer_pb2.Events.DESCRIPTOR.fields
    assert (messages.number, messages.name) == (published.number, published.name)
    assert (messages.type, messages.is_repeated) == (messages.TYPE_BYTES, published.is_repeated)
