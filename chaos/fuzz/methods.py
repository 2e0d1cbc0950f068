"""The methods of a node, as its reflection lists them."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method: the address of its listener, HOST:PORT, and its path in HTTP/2."""

    address: str
    path: str
    request: type[Message]
    response: type[Message]
    takes_many: bool
    gives_many: bool


def methods(address: str) -> list[Method]:
    """Return all methods of a listener, in the order of their paths."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        found = [
            _method(address, each)
            for name in database.get_services()
            for each in pool.FindServiceByName(name).methods
        ]
    return sorted(found, key=lambda each: each.path)


def _method(address: str, described: MethodDescriptor) -> Method:
    return Method(
        address,
        f"/{described.containing_service.full_name}/{described.name}",
        GetMessageClass(described.input_type),
        GetMessageClass(described.output_type),
        described.client_streaming,
        described.server_streaming,
    )
