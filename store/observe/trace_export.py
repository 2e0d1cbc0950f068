"""Where spans go: to a collector by OTLP, from a thread of its own, within bounds.

A collector that is away, slow or broken costs the node its spans and nothing else: at most
`queue_spans` wait, and what finds no room, or is not taken, is counted and dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

CountSpans = Callable[[str, int], None]
"""Told, from any thread, what became of so many spans: ``sent``, ``dropped`` or ``failed``."""


class _Counting(SpanExporter):
    """An exporter that tells what becomes of spans."""

    def __init__(
        self, exporter: SpanExporter, taken: Callable[[int], None], count: CountSpans
    ) -> None:
        self._exporter = exporter
        self._taken = taken
        self._count = count

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; never raises."""
        self._taken(len(spans))
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - whatever it is, the node has lost nothing but spans
            result = SpanExportResult.FAILURE
        sent = result is SpanExportResult.SUCCESS
        self._count("sent" if sent else "failed", len(spans))
        return result

    def shutdown(self) -> None:
        """End the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


class BoundedProcessor(SpanProcessor):
    """Queues spans for an exporter; what finds no room is dropped."""

    def __init__(self, exporter: SpanExporter, queue_spans: int, count: CountSpans) -> None:
        self._queue_spans = queue_spans
        self._count = count
        self._waiting = 0
        self._lock = threading.Lock()
        self._batches = BatchSpanProcessor(
            _Counting(exporter, self._taken, count), max_queue_size=queue_spans
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do yet."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that has ended; one that is not sampled is passed over."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            has_room = self._waiting < self._queue_spans
            self._waiting += has_room
        if has_room:
            self._batches.on_end(span)
        else:
            self._count("dropped", 1)

    def shutdown(self) -> None:
        """Send what waits, and end."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits."""
        return self._batches.force_flush(timeout_millis)

    def _taken(self, spans: int) -> None:
        with self._lock:
            self._waiting -= spans
