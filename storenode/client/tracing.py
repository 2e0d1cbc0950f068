"""The application's trace context, sent along with calls where it has one.

An application that traces has imported OpenTelemetry's API by itself; the client library asks for
it by its name among what is loaded, and so neither needs it nor pays for it otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from storenode.connection.channel import Metadata

_API: Final = "opentelemetry.trace"
_VERSION: Final = "00"
"""Of the format of ``traceparent`` (W3C Trace Context, level 1)."""


def trace_metadata() -> Metadata:
    """Return ``traceparent`` and ``tracestate`` of the current span; empty without one."""
    api = sys.modules.get(_API)
    if api is None:
        return ()
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ()
    flags = int(context.trace_flags)
    parent = f"{_VERSION}-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
    state = context.trace_state.to_header()
    return (("traceparent", parent), *((("tracestate", state),) if state else ()))


@contextmanager
def client_span(service: str, method: str) -> Iterator[None]:
    """Open a span of the application's tracer around a call, if it has one."""
    api = sys.modules.get(_API)
    if api is None:
        yield
        return
    with api.get_tracer("storenode").start_as_current_span(
        f"{service}/{method}",
        kind=api.SpanKind.CLIENT,
        attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
    ):
        yield
