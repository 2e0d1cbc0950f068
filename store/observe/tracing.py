"""Traces of messages through a node, as OpenTelemetry spans: see docs/tracing.md.

What is traced is what a caller's trace context asks for, or the sampler picks. A message that is
traced is known by its hash, in a book of bounded size: so its context crosses the database, whose
rows and whose feed know nothing of traces, and the cores, which know nothing of them either.

This module needs the libraries of the extra ``tracing``, and is imported only where tracing is on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from store.observe import MAX_FRAME_TRACES
from storenode.common.bounded import BoundedDict

MAX_TRACED_MESSAGES: Final = 16_384
"""Messages whose trace is known, and bodies on their way to peers; the oldest make room."""

MAX_TRACE_FIELD_CHARS: Final = 512
"""Of a caller's `traceparent` or `tracestate`; a longer one is passed over."""

TRACE_FLUSH_S: Final = 3.0
"""How long the end of the node waits for a collector to take the last spans."""

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
"""Names of metadata (W3C Trace Context)."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Value = str | int | bool
"""Of an attribute of a span."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A batch of a traced call that waits for its transaction."""

    span: Span
    caller: SpanContext


@dataclass(frozen=True, slots=True)
class FrameTrace:
    """The messages of a frame of gossip, by their places, that are of one trace."""

    traceparent: str
    places: Sequence[int]


class Tracing:
    """The spans of one node; all on the event loop's thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("storenode")
        self._book = BoundedDict[bytes, SpanContext](MAX_TRACED_MESSAGES)
        self._bodies = BoundedDict[int, bytes](MAX_TRACED_MESSAGES)

    async def close(self) -> None:
        """Flush the last spans, unless that takes longer than `TRACE_FLUSH_S`."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        # A daemon: a collector that hangs must not keep the process.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(TRACE_FLUSH_S):
                await done.wait()
        except TimeoutError:
            return

    # Calls

    @contextmanager
    def serving(
        self, service: str, method: str, metadata: Mapping[str, str], *, system: str = "grpc"
    ) -> Iterator[None]:
        """Trace a call that is served, within its caller's trace where it names one."""
        carrier = {
            name: metadata[name]
            for name in (TRACEPARENT, TRACESTATE)
            if len(metadata.get(name, "")) in range(1, MAX_TRACE_FIELD_CHARS + 1)
        }
        with self._tracer.start_as_current_span(
            f"{service}/{method}",
            context=_PROPAGATOR.extract(carrier, Context()),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": system, "rpc.service": service, "rpc.method": method},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    @contextmanager
    def within(self, name: str, **attributes: Value) -> Iterator[None]:
        """Trace a part of the call that is under way; nothing where that is not traced."""
        if not trace.get_current_span().is_recording():
            yield
            return
        with self._tracer.start_as_current_span(
            f"storenode.{name}", attributes=_named(attributes), record_exception=False
        ):
            yield

    # Batches

    def waiting(self) -> Wait | None:
        """Begin to trace the wait of a batch of this call; None where it is not traced."""
        caller = trace.get_current_span()
        if not caller.is_recording():
            return None
        return Wait(self._tracer.start_span("storenode.wait"), caller.get_span_context())

    @contextmanager
    def committing(
        self, served: Sequence[tuple[Wait, Sequence[bytes]]], **attributes: Value
    ) -> Iterator[None]:
        """Trace the transaction of traced batches, each given with the hashes of its messages.

        It belongs to the trace of the first, and is linked to the calls of all.
        """
        first = served[0][0].caller
        span = self._tracer.start_span(
            "storenode.commit",
            context=_within(first),
            kind=SpanKind.CLIENT,
            links=[Link(wait.caller) for wait, _ in served],
            attributes={"db.system.name": "postgresql", **_named(attributes)},
        )
        commit = span.get_span_context()
        for wait, hashes in served:
            wait.span.add_link(commit)
            wait.span.end()
            # Before the commit: its news may reach followers and peers before it returns here.
            own = commit if wait.caller.trace_id == commit.trace_id else wait.caller
            self._note_new(hashes, own)
        try:
            yield
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()

    # Gossip

    def bodies(self, hashes: Sequence[bytes], messages: Sequence[bytes | None]) -> None:
        """Note messages that were read to be sent, so that they are known when they are."""
        if not self._book:
            return
        for digest, message in zip(hashes, messages, strict=False):
            if message is not None and digest in self._book:
                self._bodies[hash(message)] = digest

    @contextmanager
    def pushing(self, messages: Sequence[bytes], peer: str) -> Iterator[Sequence[FrameTrace]]:
        """Trace a frame of gossip with these messages; yield what is to travel with it."""
        if not self._bodies:
            yield ()
            return
        found = [self._bodies.get(hash(message), b"") for message in messages]
        spans = [
            (self._child("storenode.gossip.push", parent, SpanKind.PRODUCER, peer), places)
            for parent, places in self._of(found)
        ]
        try:
            yield [FrameTrace(_traceparent(span), places) for span, places in spans]
        finally:
            for span, _ in spans:
                span.end()

    def arrived(self, traceparent: str, hashes: Iterable[bytes]) -> None:
        """Note that a peer has sent these messages, as part of a trace."""
        if len(traceparent) > MAX_TRACE_FIELD_CHARS:
            return
        context = _PROPAGATOR.extract({TRACEPARENT: traceparent}, Context())
        remote = trace.get_current_span(context).get_span_context()
        if remote.is_valid and remote.trace_flags.sampled:
            self._note_new(hashes, remote)

    @contextmanager
    def receiving(self, hashes: Sequence[bytes], peer: str) -> Iterator[None]:
        """Trace the storing of messages that a peer sent, in the trace of each."""
        found = self._of(hashes) if self._book else []
        spans = []
        for parent, places in found:
            span = self._child("storenode.gossip.receive", parent, SpanKind.CONSUMER, peer)
            spans.append(span)
            self._note([hashes[place] for place in places], span.get_span_context())
        if not spans:
            yield
            return
        try:
            with trace.use_span(spans[0], record_exception=False):
                yield
        finally:
            for span in spans:
                span.end()

    # Followers

    @contextmanager
    def delivering(self, hashes: Iterable[bytes], *, live: bool) -> Iterator[None]:
        """Trace the sending of messages to a follower."""
        spans = [
            self._tracer.start_span(
                "storenode.deliver",
                context=_within(parent),
                kind=SpanKind.PRODUCER,
                attributes={"storenode.messages": len(places), "storenode.live": live},
            )
            for parent, places in (self._of(list(hashes)) if self._book else ())
        ]
        try:
            yield
        finally:
            for span in spans:
                span.end()

    # The book

    def _child(self, name: str, parent: SpanContext, kind: SpanKind, peer: str) -> Span:
        return self._tracer.start_span(
            name, context=_within(parent), kind=kind, attributes={"storenode.peer": peer}
        )

    def _of(self, hashes: Sequence[bytes]) -> list[tuple[SpanContext, list[int]]]:
        """Return `MAX_FRAME_TRACES` contexts of some messages, each with its messages' places."""
        found: dict[tuple[int, int], tuple[SpanContext, list[int]]] = {}
        for place, digest in enumerate(hashes):
            context = self._book.get(digest)
            if context is None:
                continue
            key = context.trace_id, context.span_id
            if key in found or len(found) < MAX_FRAME_TRACES:
                found.setdefault(key, (context, []))[1].append(place)
        return list(found.values())

    def _note(self, hashes: Iterable[bytes], context: SpanContext) -> None:
        self._book.update(dict.fromkeys(hashes, context))

    def _note_new(self, hashes: Iterable[bytes], context: SpanContext) -> None:
        """Note what is not of another trace already: the first to bring a message keeps it."""
        book, trace_id = self._book, context.trace_id
        self._note(
            [digest for digest in hashes if book.get(digest, context).trace_id == trace_id], context
        )


def _within(parent: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier[TRACEPARENT]


def _named(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {f"storenode.{name}": value for name, value in attributes.items()}


CountSpans = Callable[[str, int], None]
"""Called from any thread with an outcome, ``sent``, ``dropped`` or ``failed``, and a number."""


class _Counting(SpanExporter):
    """An exporter that reports the outcome of spans."""

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
        """Send what the exporter holds."""
        return self._exporter.force_flush(timeout_millis)


class BoundedProcessor(SpanProcessor):
    """A queue of spans for an exporter that runs in a thread of its own.

    A collector that is away, slow or broken costs the node its spans and nothing else: at most
    ``queue_spans`` wait, and what finds no room, or is not taken, is counted and dropped.
    """

    def __init__(self, exporter: SpanExporter, queue_spans: int, count: CountSpans) -> None:
        self._queue_spans = queue_spans
        self._count = count
        self._waiting = 0
        self._lock = threading.Lock()
        self._batches = BatchSpanProcessor(
            _Counting(exporter, self._taken, count), max_queue_size=queue_spans
        )

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Return at once: spans are queued when they end."""

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
