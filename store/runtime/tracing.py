"""Turns tracing on, where the options ask for it.

What the options do not say is in OpenTelemetry's own environment variables: the collector's
address, its headers, the queue's size, attributes of the node.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from store.config.node import NodeConfig
from store.observe.metrics import Metrics
from store.runtime.node_files import WrongConfigurationError

if TYPE_CHECKING:
    from store.observe.tracing import Tracing

_NO_LIBRARIES: Final = (
    "--tracing needs the libraries of the extra `tracing`: install them with"
    " `pip install 'storenode[tracing]'`, or leave the option out."
)
_QUEUE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_DEFAULT_QUEUE: Final = "2048"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def check_tracing(config: NodeConfig) -> None:
    """Look at what tracing needs, before anything is started.

    Raises:
        WrongConfigurationError: the libraries are not there, or a variable cannot be used.
    """
    if not config.tracing:
        return
    for name in _PROTOCOLS:
        value = os.environ.get(name, "grpc")
        if value != "grpc":
            raise WrongConfigurationError(
                f"{name} is {value}, and this node sends traces by grpc alone: unset it, and name"
                " the collector's gRPC address, usually on port 4317."
            )
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise WrongConfigurationError(_NO_LIBRARIES)
    if not _queue_spans().isdecimal() or int(_queue_spans()) == 0:
        raise WrongConfigurationError(
            f"{_QUEUE} is {_queue_spans()}: give the spans that may wait, 1 or more."
        )


def open_tracing(
    stack: AsyncExitStack, config: NodeConfig, metrics: Metrics, node_id: str, version: str
) -> Tracing | None:
    """Begin to trace; `stack` hands over the last spans. None: tracing is off.

    Raises:
        WrongConfigurationError: a variable cannot be used.
    """
    if not config.tracing:
        return None
    # Imported here: the libraries are an extra, and take their time.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    from store.observe.tracing import BoundedProcessor, Tracing  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME", "storenode")
    attributes = {
        "service.name": name,
        "service.instance.id": node_id,
        "service.version": version,
    }
    try:
        provider = TracerProvider(
            resource=Resource.create(attributes),
            shutdown_on_exit=False,
        )
        processor = BoundedProcessor(
            OTLPSpanExporter(),
            int(_queue_spans()),
            lambda what, spans: metrics.trace_spans.labels(what).inc(spans),
        )
    except ValueError as error:
        raise WrongConfigurationError(
            f"A variable of OpenTelemetry cannot be used ({error}): correct OTEL_*."
        ) from error
    provider.add_span_processor(processor)
    tracing = Tracing(provider)
    stack.push_async_callback(tracing.close)
    return tracing


def _queue_spans() -> str:
    return os.environ.get(_QUEUE, _DEFAULT_QUEUE)
