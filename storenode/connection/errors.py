"""What a call of a node may raise besides a wrong argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

_NOT_CONNECTED: Final = ("failed to connect", "dns resolution failed")
_NOT_SENT: Final = 'Failed "execute_batch"'


class ClientOptionError(ValueError):
    """The address, the token or the TLS files are wrong or may not go together."""


class NodeError(Exception):
    """A call failed: ``code`` is the name of a gRPC status, ``sentence`` says what to do.

    Protocol errors of ``Query`` (13/WAKU2-STORE) have codes such as ``QUERY_404``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{sentence} ({code})")
        self.code = code
        self.sentence = sentence

    @property
    def unreachable(self) -> bool:
        """True when the node or its database could not be reached; trying again may help."""
        return self.code in {"UNAVAILABLE", "QUERY_503"}


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Raise errors of gRPC as `NodeError`; ``address`` is the node's, for the sentence."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise node_error(error, address) from error


def is_away(error: grpc.aio.AioRpcError) -> bool:
    """True when the node did not serve the call, or was gone before all of it was sent.

    For a message that could not be sent, gRPC itself sets INTERNAL; its debug text tells that from
    the status of a node.
    """
    if error.code() is grpc.StatusCode.INTERNAL:
        return (error.debug_error_string() or "").startswith(_NOT_SENT)
    return error.code() is grpc.StatusCode.UNAVAILABLE


def node_error(error: grpc.aio.AioRpcError, address: str) -> NodeError:
    """The error of a call as the caller sees it."""
    code, details = error.code().name, (error.details() or "").strip()
    if code == "UNAVAILABLE" and details.lower().startswith(_NOT_CONNECTED):
        cause = details.rpartition("last error: ")[2].rpartition("remote host: ")[2]
        return NodeError(
            code,
            f"No node could be reached at {address} ({cause}): check the address, that the node "
            "runs, and the TLS options.",
        )
    if code == "INTERNAL" and is_away(error):
        return NodeError(
            "UNAVAILABLE",
            f"The connection to the node at {address} broke while a request was sent: send it "
            "again.",
        )
    if code == "UNIMPLEMENTED":
        return NodeError(
            code,
            f"The node does not serve this call at {address}: name the listener that serves it, "
            "or a node of a newer version.",
        )
    return NodeError(code, details or f"The node at {address} gave no reason.")


def query_error(status_code: int, description: str) -> NodeError:
    """The error that a ``StoreQueryResponse`` carries (13/WAKU2-STORE, status codes)."""
    return NodeError(f"QUERY_{status_code}", description or "The node gave no reason.")
