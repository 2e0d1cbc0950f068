"""The errors of calls of a node, each with a sentence that says what to do."""

from collections.abc import Iterable
from typing import Any, Final

import grpc

from storenode.common.errors import StorenodeError

DRAINING: Final = "the node is shutting down"
"""The beginning of the sentence with which a node that shuts down ends a call."""

_NOT_CONNECTED: Final = ("failed to connect", "dns resolution failed", "errors resolving")
_NOT_SENT: Final = 'Failed "execute_batch"'
RETRY_PUSHBACK: Final = "grpc-retry-pushback-ms"
"""The trailing metadata of a call that the node could not serve at the moment: the milliseconds to
wait before a retry (gRPC proposal A6, "Pushback")."""

_BROKEN: Final = (
    "broken pipe",
    "connection reset",
    "goaway",
    "keepalive",
    "ping timeout",
    "recvmsg",
    "sendmsg",
    "socket closed",
    "stream removed",
    "transport closed",
)
"""The beginnings of gRPC's, not the node's, sentences on a broken connection."""

_TLS_FAILURES: Final = ("ls handshake failed", "sl handshake failed", "verification check failed")
_FOREIGN_PROTOCOLS: Final = ("Failed parsing HTTP/2", "http1.x server")
"""Parts of gRPC's own sentences on connections that another attempt does not make."""

_CLEAR_TEXT: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_FOREIGN_NAME: Final = "verification check failed"
"""Parts of gRPC's own sentences on TLS handshakes that failed."""


class ClientOptionError(StorenodeError, ValueError):
    """The address, the token or the TLS files are wrong or may not go together."""


class NodeError(StorenodeError):
    """A call failed: ``code`` is the name of a gRPC status, ``sentence`` says what to do.

    Protocol errors of ``Query`` (13/WAKU2-STORE) have codes such as ``QUERY_404``. ``retryable`` is
    true where the same call may succeed at another node, or at this one later.
    """

    retryable = False

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{sentence} ({code})")
        self.code = code
        self.sentence = sentence


class NodeUnavailableError(NodeError):
    """The node did not serve the call, for example because its database is away."""

    retryable = True


class NodeUnreachableError(NodeUnavailableError):
    """An error for a node to which no connection could be made."""

    is_closed = False
    """True when the listener closed the connection without a reason."""


class TlsHandshakeError(NodeUnreachableError):
    """The TLS options do not fit the node; another attempt cannot help."""

    retryable = False


class WrongProtocolError(NodeUnreachableError):
    """The listener at this address does not speak gRPC; another attempt cannot help."""

    retryable = False


class ConnectionLostError(NodeUnavailableError):
    """The connection broke before the call had ended."""


class NodeDrainingError(NodeUnavailableError):
    """The node is shutting down and ended the call."""


class CallTimeoutError(NodeError):
    """The node did not answer within the call's time limit."""


class CursorRefusedError(NodeError):
    """The node cannot continue from this cursor of another store, or of lost commits."""


class InvalidRequestError(NodeError):
    """The request is malformed, or its parts do not go together."""


class NotAuthenticatedError(NodeError):
    """The call has no token, or one that the node does not know."""


class AccessDeniedError(NodeError):
    """The token does not give the right that the call needs."""


class LimitExceededError(NodeError):
    """The request exceeds a limit of the node, the token or the client; the sentence names it.

    ``retryable`` is true where that is so for the moment: too much is requested at the same time.
    """


class NotServedError(NodeError):
    """The listener at this address does not serve the call."""


_BY_CODE: Final[dict[str, type[NodeError]]] = {
    "DEADLINE_EXCEEDED": CallTimeoutError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": CursorRefusedError,
    "PERMISSION_DENIED": AccessDeniedError,
    "RESOURCE_EXHAUSTED": LimitExceededError,
    "UNAUTHENTICATED": NotAuthenticatedError,
    "QUERY_400": InvalidRequestError,
    "QUERY_404": CursorRefusedError,
    "QUERY_429": LimitExceededError,
    "QUERY_503": NodeUnavailableError,
}


def node_error(error: grpc.aio.AioRpcError, address: str) -> NodeError:
    """Return the error of a call as the caller sees it."""
    code, details = error.code().name, (error.details() or "").strip()
    if code == "INTERNAL" and (error.debug_error_string() or "").startswith(_NOT_SENT):
        # gRPC's own status for a message that could not be sent; the node has said nothing.
        code, details = "UNAVAILABLE", ""
    if code == "UNAVAILABLE":
        return _unavailable(details, address)
    if code == "CANCELLED":
        return ConnectionLostError(
            code, f"The node at {address} ended the call before its end: make it again."
        )
    if code == "UNIMPLEMENTED":
        return NotServedError(
            code,
            f"The node does not serve this call at {address}: name the listener that serves it, "
            "or a node of a newer version.",
        )
    kind = _BY_CODE.get(code, NodeError)
    failure = kind(code, details or f"The node at {address} gave no reason.")
    if code == "RESOURCE_EXHAUSTED":
        # The types of gRPC describe its metadata wrongly: it is pairs of a name and a value.
        metadata: Iterable[Any] = error.trailing_metadata() or ()
        failure.retryable = any(name == RETRY_PUSHBACK for name, _ in metadata)
    return failure


def _unavailable(details: str, address: str) -> NodeUnavailableError:
    code = "UNAVAILABLE"
    if details.lower().startswith(_NOT_CONNECTED):
        cause = details
        for before in ("last error: ", "remote host: ", "lookup failed for "):
            cause = cause.rpartition(before)[2]
        # Of a name that is not known there is left "ADDRESS: Domain name not found]".
        cause = cause.removeprefix(f"{address}: ").rstrip("]")
        if any(each in details for each in _TLS_FAILURES):
            return TlsHandshakeError(code, _handshake_sentence(details, address, cause))
        if any(each in details for each in _FOREIGN_PROTOCOLS):
            return WrongProtocolError(
                code,
                f"No node could be reached at {address}, since what listens there does not speak "
                "gRPC: check the port.",
            )
        sentence = f"No node could be reached at {address} ({cause}): check the address, "
        failure = NodeUnreachableError(code, sentence + "that the node runs, and the TLS options.")
        failure.is_closed = "Socket closed" in details
        return failure
    if details.startswith(DRAINING):
        return NodeDrainingError(code, details)
    if details and not details.lower().startswith(_BROKEN):
        return NodeUnavailableError(code, details)
    cause = f" ({details})" if details else ""
    return ConnectionLostError(
        code, f"The connection to the node at {address} broke{cause}: make the call again."
    )


def _handshake_sentence(details: str, address: str, cause: str) -> str:
    if any(each in details for each in _CLEAR_TEXT):
        return f"The listener at {address} does not speak TLS: connect without, or check the port."
    if _UNTRUSTED in details:
        reason = details.rpartition(f"{_UNTRUSTED}: ")[2].removesuffix(": OK")
        return (
            f"The certificate of the node at {address} is not trusted ({reason}): give the "
            "certificate authority that has signed it."
        )
    if _FOREIGN_NAME in details:
        return (
            f"The certificate of the node at {address} is for another name: connect by a name or "
            "an address that it has."
        )
    return (
        f"The TLS handshake with the node at {address} failed ({cause}): check the certificates "
        "and the TLS options."
    )


def silent_node(address: str, limit_s: float | None) -> CallTimeoutError:
    """Return the error of a call that the node has not answered in time."""
    return CallTimeoutError(
        "DEADLINE_EXCEEDED",
        f"The node at {address} did not answer within {limit_s or 0:g} s: check that it runs, or "
        "allow more time.",
    )


def query_error(status_code: int, description: str) -> NodeError:
    """Return the error that a ``StoreQueryResponse`` carries (13/WAKU2-STORE, status codes)."""
    code = f"QUERY_{status_code}"
    failure = _BY_CODE.get(code, NodeError)(code, description or "The node gave no reason.")
    failure.retryable = failure.retryable or code == "QUERY_429"
    return failure
