"""Structured logs on standard error: one line of text or JSON per event.

Fields of every line: `timestamp` (RFC 3339, UTC), `level`, `event`, `component`, and what the event
brings; inside a call also `request_id`. Standard output is not for logs: a node prints its ready
line there. Warnings and errors pass a `FloodGate`, so that bad input cannot flood the log.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

from storenode.message.text import printable


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let imports in the block find a package missing, which they use where it is installed."""
    imported = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]  # what marks a missing one
    try:
        yield
    finally:
        del sys.modules[package]
        if imported is not None:
            sys.modules[package] = imported


# For tracebacks that no log here has; it takes as long to import as Postgres to start.
with _hidden("rich"):
    import structlog
    from structlog.contextvars import bind_contextvars, merge_contextvars
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

LOG_BURST_EVENTS: Final = 20
"""Warnings and errors of one kind that are written per interval; the rest is counted."""

LOG_INTERVAL_S: Final = 10.0

MAX_LOG_KINDS: Final = 512
"""Kinds of event that are counted apart; further ones share one count."""

MAX_LOG_TEXT_CHARS: Final = 2_000
"""A longer text in a log line is cut: what a remote side sends is not written without end."""

MAX_TRACEBACK_CHARS: Final = 20_000

Logger = FilteringBoundLogger

_SECRET_FIELDS = frozenset(
    {"authorization", "database_url", "password", "private_key", "token", "url"}
)
_GRPC_NO_UTF8 = "Invalid encoding on"
_NO_UTF8 = "a caller has sent metadata that are no UTF-8"

OTHER_KINDS = "other events"
"""The kind that stands for all beyond MAX_LOG_KINDS."""


@dataclass(slots=True)
class _Window:
    started_s: float
    passed: int = 0
    suppressed: int = 0


class FloodGate:
    """A count of events by kind: of each, so many pass per interval, and the rest is counted.

    The count is written with the next event of that kind or by `drain`. Time is an argument.
    ``total``: how many were suppressed since the start.
    """

    def __init__(
        self,
        burst: int = LOG_BURST_EVENTS,
        interval_s: float = LOG_INTERVAL_S,
        max_kinds: int = MAX_LOG_KINDS,
    ) -> None:
        self._burst = burst
        self._interval_s = interval_s
        self._max_kinds = max_kinds
        self._windows: dict[str, _Window] = {}
        self.total = 0

    def admit(self, kind: str, now_s: float) -> int | None:
        """Return how many of this kind were suppressed before; None: suppress this one too."""
        window = self._window(kind, now_s)
        missed = 0
        if now_s - window.started_s >= self._interval_s:
            missed = window.suppressed
            window.started_s, window.passed, window.suppressed = now_s, 0, 0
        if window.passed >= self._burst:
            window.suppressed += 1
            self.total += 1
            return None
        window.passed += 1
        return missed

    def drain(self, now_s: float) -> list[tuple[str, int]]:
        """Return the kinds whose interval is over with their counts, which are then forgotten."""
        over = [
            (kind, window)
            for kind, window in self._windows.items()
            if now_s - window.started_s >= self._interval_s
        ]
        for kind, _ in over:
            del self._windows[kind]
        return [(kind, window.suppressed) for kind, window in over if window.suppressed]

    def clear(self) -> None:
        """Forget every kind and its count."""
        self._windows.clear()

    def _window(self, kind: str, now_s: float) -> _Window:
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= self._max_kinds:
                kind = OTHER_KINDS
            window = self._windows.setdefault(kind, _Window(now_s))
        return window


_gate = FloodGate()
_gate_lock = threading.Lock()

request_context = bind_contextvars
"""Bind fields, such as `request_id`, to all that the current task logs; returns reset tokens."""


def get_logger(name: str) -> Logger:
    """Return a logger whose lines carry `component=name`; cheap enough for module level."""
    return cast("Logger", structlog.get_logger(component=name))


def configure(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logs, those of libraries too, to `stream` (standard error by default).

    `log_format` is `text` or `json`, `level` one of the standard library's, such as `info`. What
    an earlier log held back does not count for this one.
    """
    with _gate_lock:
        _gate.clear()
    out = _Unbreakable(sys.stderr if stream is None else stream)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    ending = [*_ending(log_format), _renderer(log_format, out)]
    structlog.configure(
        processors=[*_shared(), *ending],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", out)),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(threshold, ending, out)


def write_suppressed() -> None:
    """Write how many events the flood gate held back in the intervals that are over."""
    with _gate_lock:
        suppressed = _gate.drain(time.monotonic())
    log = get_logger("store.observe")
    for kind, count in suppressed:
        log.info("log_events_suppressed", kind=kind, count=count)


def suppressed_total() -> int:
    """Return how many events the flood gate held back since the start."""
    return _gate.total


def _shared() -> list[Processor]:
    return [
        merge_contextvars,
        structlog.processors.add_log_level,
        _stop_floods,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _ending(log_format: str) -> list[Processor]:
    usual: list[Processor] = [structlog.processors.format_exc_info, _hide_secrets, _cut_long_texts]
    return [*usual, _escape_unquoted] if log_format == "text" else usual


class _Unbreakable:
    """A stream on which writing never fails: a log that cannot be written must not stop a node."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _renderer(log_format: str, out: _Unbreakable) -> Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer(default=str)
    return structlog.dev.ConsoleRenderer(
        colors=out.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
        # Quoted, a text of a remote side can neither begin a new line nor speak to a terminal.
        repr_native_str=True,
    )


def _escape_unquoted(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape what a text log does not quote: messages of libraries, and indented tracebacks."""
    event["event"] = printable(str(event.get("event")))
    if "exception" in event:
        lines = event["exception"].split("\n")
        event["exception"] = "\n".join(f"  {printable(line)}" for line in lines)
    return event


def _configure_libraries(threshold: int, ending: Sequence[Processor], out: _Unbreakable) -> None:
    handler = logging.StreamHandler(cast("TextIO", out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library, *_shared()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *ending,
            ],
        )
    )
    handler.addFilter(_LibraryFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What libraries tell at lower levels describes their own workings.
    root.setLevel(max(threshold, logging.WARNING))
    # Its pools report each of their attempts; `database_away` and `database_back` say it once.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


class _LibraryFilter(logging.Filter):
    """Puts records of libraries through the flood gate before they are formatted.

    A processor that drops an event may not run inside a formatter, which must return a text. gRPC
    reports metadata that are no UTF-8 by an error with a traceback and their text, which a caller
    has chosen and which may be a token: a warning without it takes its place.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("grpc.") and str(record.msg).startswith(_GRPC_NO_UTF8):
            record.msg, record.args, record.exc_info = _NO_UTF8, (), None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return _admitted(f"{record.name}: {record.msg}"[:MAX_LOG_TEXT_CHARS]) is not None


def _admitted(kind: str) -> int | None:
    with _gate_lock:
        return _gate.admit(kind, time.monotonic())


def _stop_floods(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if method in ("debug", "info") or "_record" in event:
        return event
    missed = _admitted(str(event.get("event")))
    if missed is None:
        raise structlog.DropEvent
    if missed:
        event["suppressed"] = missed
    return event


def _name_library(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["component"] = event["_record"].name
    return event


def _hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for name in _SECRET_FIELDS & event.keys():
        event[name] = "(hidden)"
    return event


def _cut_long_texts(
    _logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for name, value in event.items():
        limit = MAX_TRACEBACK_CHARS if name == "exception" else MAX_LOG_TEXT_CHARS
        if isinstance(value, str) and len(value) > limit:
            event[name] = value[:limit] + "..."
    return event
