"""The client library of storenode, with its names loaded when they are first used."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storenode.client import AsyncClient, Client, Message
    from storenode.sds.aio.blocking_channel import Channel
    from storenode.sds.aio.channel import AsyncChannel

    __version__: str

# gRPC and BoringSSL print errors of their own on standard error; the library logs and raises them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["AsyncChannel", "AsyncClient", "Channel", "Client", "Message", "__version__"]

_MODULES = {
    "AsyncChannel": "storenode.sds.aio.channel",
    "AsyncClient": "storenode.client",
    "Channel": "storenode.sds.aio.blocking_channel",
    "Client": "storenode.client",
    "Message": "storenode.client",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names
    if name == "__version__":
        return import_module("importlib.metadata").version("storenode")
    if name not in _MODULES:
        raise AttributeError(f"module 'storenode' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
