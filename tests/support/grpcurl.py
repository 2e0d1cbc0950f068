"""A stand-in for grpcurl with server reflection, as far as the documentation uses it; a script.

It has the schema only from the node: no generated class of ours is imported. The variable
``GRPCURL_ADDRESSES`` (``FROM=TO FROM=TO``) sends a documented address to a node under test.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)


def installed(directory: Path) -> str:
    """Make this script the command ``grpcurl`` in a directory; returns a search path with it."""
    command = directory / "grpcurl"
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__])} "$@"\n')
    command.chmod(0o755)
    return f"{directory}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def main(arguments: Sequence[str]) -> None:
    """Run ``-plaintext [-d JSON] ADDRESS list|SERVICE/METHOD``."""
    flag, *rest = arguments
    assert flag == "-plaintext"
    body = "{}"
    if rest[0] == "-d":
        body, rest = rest[1], rest[2:]
    address, what = rest
    addresses = dict(pair.split("=") for pair in os.environ["GRPCURL_ADDRESSES"].split())
    with grpc.insecure_channel(addresses[address]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        if what == "list":
            sys.stdout.write("\n".join(sorted(database.get_services())) + "\n")
            return
        for answer in call(channel, DescriptorPool(database), what, body):
            sys.stdout.write(json_format.MessageToJson(answer) + "\n")


def call(channel: grpc.Channel, pool: DescriptorPool, what: str, body: str) -> Iterator[Message]:
    """Call a method with one request, whatever its kind."""
    service, _, name = what.partition("/")
    method: MethodDescriptor = pool.FindServiceByName(service).methods_by_name[name]
    request = json_format.Parse(body, GetMessageClass(method.input_type)())
    path, encode = f"/{service}/{name}", type(request).SerializeToString
    decode = GetMessageClass(method.output_type).FromString
    if method.server_streaming:
        yield from channel.unary_stream(path, encode, decode)(request)
    else:
        yield channel.unary_unary(path, encode, decode)(request)


if __name__ == "__main__":
    main(sys.argv[1:])
