"""Structured logs on standard error: one line of text or JSON per event.

Fields of every line: `timestamp` (RFC 3339, UTC), `level`, `event`, `component`, and what the event
brings; inside a call also `request_id`. Standard output is not for logs: a node prints its ready
line there. Warnings and errors pass a `FloodGate`, so that bad input cannot flood the log.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partialmethod
from typing import Any, ClassVar, Final, TextIO

from storenode.message.text import printable

LOG_BURST_EVENTS: Final = 20
"""Warnings and errors of one kind that are written per interval; the rest is counted."""

LOG_INTERVAL_S: Final = 10.0

MAX_LOG_KINDS: Final = 512
"""Kinds of event that are counted apart; further ones share one count."""

MAX_LOG_TEXT_CHARS: Final = 2_000
"""A longer text in a log line is cut: what a remote side sends is not written without end."""

MAX_TRACEBACK_CHARS: Final = 20_000

_SECRET_FIELDS = frozenset(
    {"authorization", "database_url", "password", "private_key", "token", "url"}
)
_GRPC_OF_CALLERS = "Invalid encoding on", "ExecuteBatchError raised in core"
_OF_CALLERS = "a caller has dropped its call, or sent metadata that are no UTF-8"

_COLORS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


class FloodGate:
    """A count of events by kind: a number of each passes per interval, and the rest is counted.

    Time is an argument. ``total``: how many were suppressed since the start.
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._began_s = 0.0
        self.total = 0

    def admit(self, kind: str) -> bool:
        """Return True if an event passes."""
        if kind not in self._counts and len(self._counts) >= MAX_LOG_KINDS:
            kind = "other events"
        self._counts[kind] += 1
        passes = self._counts[kind] <= LOG_BURST_EVENTS
        self.total += not passes
        return passes

    def drain(self, now_s: float) -> list[tuple[str, int]]:
        """Begin a new interval if the last one is over; return what that suppressed, by kind."""
        if now_s - self._began_s < LOG_INTERVAL_S:
            return []
        counts, self._counts, self._began_s = self._counts, Counter[str](), now_s
        return [(kind, n - LOG_BURST_EVENTS) for kind, n in counts.items() if n > LOG_BURST_EVENTS]


FLOOD_GATE: Final = FloodGate()
_gate_lock = threading.Lock()

CURRENT_REQUEST: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The request that the current task serves, which is in all that it logs."""


class Logger:
    """A logger of events with fields, whose lines carry its component.

    `debug`, `info`, `warning` and `error` take the event's name, and the fields as keywords;
    ``exc_info`` is an exception whose traceback is written. `exception` writes that of the present
    one. Of the levels below ``threshold`` nothing is written.
    """

    threshold: ClassVar[int] = logging.INFO
    is_debugging: ClassVar[bool] = False

    def __init__(self, component: str) -> None:
        self._component = component

    def _log(self, level: int, event: str, exc_info: object = None, **fields: object) -> None:
        if level < self.threshold:
            return
        error = sys.exception() if exc_info is True else exc_info
        record = {
            "name": self._component,
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": event,
            "exc_info": error and (type(error), error, getattr(error, "__traceback__", None)),
            "fields": fields,
        }
        logging.getLogger().handle(logging.makeLogRecord(record))

    debug = partialmethod(_log, logging.DEBUG)
    info = partialmethod(_log, logging.INFO)
    warning = partialmethod(_log, logging.WARNING)
    error = partialmethod(_log, logging.ERROR)
    exception = partialmethod(_log, logging.ERROR, exc_info=True)


def get_logger(name: str) -> Logger:
    """Return a logger whose lines carry `component=name`; cheap enough for module level."""
    return Logger(name)


def configure(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logs, those of libraries too, to `stream` (standard error by default).

    `log_format` is `text` or `json`, `level` one of the standard library's, such as `info`. A log
    that cannot be written does not stop a node.
    """
    logging.raiseExceptions = False
    Logger.threshold = logging.getLevelNamesMapping()[level.upper()]
    Logger.is_debugging = Logger.threshold <= logging.DEBUG
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    is_terminal = handler.stream.isatty()
    handler.setFormatter(_Json() if log_format == "json" else _Text(colored=is_terminal))
    handler.addFilter(_stop_floods)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What libraries tell at lower levels describes their own workings.
    root.setLevel(max(Logger.threshold, logging.WARNING))


def write_suppressed() -> None:
    """Write how many events the flood gate held back in the intervals that are over."""
    with _gate_lock:
        suppressed = FLOOD_GATE.drain(time.monotonic())
    for kind, count in suppressed:
        get_logger("store.observe").info("log_events_suppressed", kind=kind, count=count)


def _stop_floods(record: logging.LogRecord) -> bool:
    """Return True if a record is written: warnings and errors have to pass the flood gate.

    gRPC reports what callers do as errors with a traceback, and a text that they have chosen and
    that may be a token: a warning without these takes its place.
    """
    if record.name.startswith("grpc.") and str(record.msg).startswith(_GRPC_OF_CALLERS):
        record.msg, record.args, record.exc_info = _OF_CALLERS, (), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    if record.levelno < logging.WARNING:
        return True
    write_suppressed()
    kind = record.msg if hasattr(record, "fields") else f"{record.name}: {record.msg}"
    with _gate_lock:
        return FLOOD_GATE.admit(kind[:MAX_LOG_TEXT_CHARS])


class _Json(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields_of(record), default=str)

    def fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return all fields of a record, without secrets, and with long texts cut."""
        moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        fields: dict[str, Any] = {
            "timestamp": f"{moment.isoformat(timespec='microseconds')}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "component": record.name,
            **({} if (request := CURRENT_REQUEST.get()) is None else {"request_id": request}),
            **getattr(record, "fields", {}),
        }
        for name in _SECRET_FIELDS & fields.keys():
            fields[name] = "(hidden)"
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["exception"] = self.formatException(record.exc_info)
        for name, value in fields.items():
            limit = MAX_TRACEBACK_CHARS if name == "exception" else MAX_LOG_TEXT_CHARS
            if isinstance(value, str) and len(value) > limit:
                fields[name] = value[:limit] + "..."
        return fields


class _Text(_Json):
    """Formats a record as a line of text, below which a traceback is indented.

    Quoted, a text of a remote side can neither begin a new line nor speak to a terminal.
    """

    def __init__(self, *, colored: bool) -> None:
        super().__init__()
        self._colors = _COLORS if colored else {}

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields_of(record)
        timestamp, level = fields.pop("timestamp"), fields.pop("level")
        event, exception = printable(fields.pop("event")), fields.pop("exception", "")
        color = self._colors.get(level, "")
        level = f"{color}{level:<9}{_PLAIN if color else ''}"
        rest = " ".join(f"{name}={printable(repr(fields[name]))}" for name in sorted(fields))
        head = f"{timestamp} [{level}] {event:<30} {rest}"
        return "\n  ".join([head, *map(printable, exception.split("\n"))]).rstrip()
