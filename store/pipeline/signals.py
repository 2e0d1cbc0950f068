"""Signals that end a job: Ctrl-C, and SIGTERM as from a service manager or a scheduler."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TERMINATED: Final = 143
"""Exit code after SIGTERM, as shells have it: 128 and the number of the signal."""

_SENDING: Final = "KeyboardInterrupt while sending command."


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a block as Ctrl-C does, by an exception: what is temporary is removed.

    It works only in the main thread.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    interrupt = signal.getsignal(signal.SIGINT)
    root = logging.getLogger()
    root.addFilter(_is_relevant)
    try:
        yield
    finally:
        root.removeFilter(_is_relevant)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def interrupt_here() -> None:
    """Let Ctrl-C be an exception and nothing else, also after Spark was started.

    The handler of PySpark calls the JVM first, on the connection that waits for its answer.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise TerminatedError


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the report of py4j that it was waiting when the exception came."""
    return record.msg != _SENDING
