"""An OpenTelemetry collector: a gRPC server that takes spans and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Exported:
    """A span as it came; IDs as hexadecimal digits, ``links`` as (trace, span)."""

    name: str
    trace: str
    span: str
    parent: str
    links: tuple[tuple[str, str], ...]
    node: str
    attributes: dict[str, Any]


class Collector(trace_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._spans: list[Exported] = []
        self.endpoint = ""

    def Export(self, request: Any, _context: Any) -> Any:  # noqa: ANN401, N802 - the service's own
        """Take spans."""
        taken = [
            _exported(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._arrived:
            self._spans += taken
            self._arrived.notify_all()
        return trace_pb2.ExportTraceServiceResponse()

    def wait(self, right: Callable[[list[Exported]], bool]) -> list[Exported]:
        """Wait until what has come is right."""
        with self._arrived:
            came = self._arrived.wait_for(lambda: right(self._spans), PATIENCE_S)
            assert came, sorted(span.name for span in self._spans)
            return list(self._spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that listens on a free port of 127.0.0.1."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _exported(span: Any, resource: dict[str, Any]) -> Exported:  # noqa: ANN401
    return Exported(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        str(resource["service.instance.id"]),
        _values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:  # noqa: ANN401
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
