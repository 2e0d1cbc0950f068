"""Log lines: their form, what they hide, and how a flood is cut."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.observe import logging as observed
from store.observe.logging import (
    LOG_BURST_EVENTS,
    LOG_INTERVAL_S,
    MAX_LOG_KINDS,
    MAX_LOG_TEXT_CHARS,
    FloodGate,
)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Yield the stream of this test's logs, and restore the process's configuration."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(observed, "FLOOD_GATE", FloodGate())
    yield io.StringIO()
    observed.CURRENT_REQUEST.set(None)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_time_level_event_component_and_request(stream: io.StringIO) -> None:
    observed.configure("json", "info", stream)
    observed.CURRENT_REQUEST.set("r-1")
    observed.get_logger("a.b").info("stored", count=3)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "event": "stored",
        "component": "a.b",
        "count": 3,
        "request_id": "r-1",
    }


def test_secrets_are_hidden_and_long_texts_cut(stream: io.StringIO) -> None:
    observed.configure("json", "info", stream)
    observed.get_logger("a").info("x", token="t0p", password="s3cret", text="y" * 10_000)
    (line,) = lines(stream)
    assert line["token"] == line["password"] == "(hidden)"
    assert line["text"] == "y" * MAX_LOG_TEXT_CHARS + "..."


def test_a_flood_of_warnings_is_cut_and_counted(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed.configure("json", "info", stream)
    log = observed.get_logger("a")
    for number in range(1_000):
        log.warning("bad_input", number=number)
    log.warning("another")
    events = [line["event"] for line in lines(stream)]
    assert events == ["bad_input"] * LOG_BURST_EVENTS + ["another"]
    assert observed.FLOOD_GATE.total == 1_000 - LOG_BURST_EVENTS
    later = time.monotonic() + 3_600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    observed.write_suppressed()
    last = lines(stream)[-1]
    assert (last["event"], last["kind"]) == ("log_events_suppressed", "bad_input")
    assert last["count"] == 1_000 - LOG_BURST_EVENTS


def test_libraries_log_in_the_same_form_and_are_cut_too(stream: io.StringIO) -> None:
    observed.configure("json", "debug", stream)
    library = logging.getLogger("some.library")
    library.info("chatter")
    for number in range(100):
        library.warning("lost connection %d", number)
    try:
        raise ValueError("inner")
    except ValueError:
        library.exception("failed")
        logging.getLogger("grpc.core").exception("ExecuteBatchError raised in core by [/Scan]")
    *passed, failed, dropped = lines(stream)
    assert len(passed) == LOG_BURST_EVENTS
    assert (passed[0]["event"], passed[0]["component"]) == ("lost connection 0", "some.library")
    assert "ValueError: inner" in failed["exception"]
    assert (dropped["level"], "exception" in dropped) == ("warning", False)


def test_text_of_others_cannot_forge_lines_or_drive_a_terminal(stream: io.StringIO) -> None:
    observed.configure("text", "info", stream)
    observed.get_logger("a").info("x", said="one\ntwo\x1b[31m")
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert "\x1b" not in written
    assert r"one\ntwo\x1b[31m" in written


def test_a_log_that_cannot_be_written_stops_no_caller() -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    try:
        observed.configure("json", "info", Full())
        observed.get_logger("a").info("x")
        observed.get_logger("a").error("y")
    finally:
        logging.getLogger().handlers.clear()


def test_the_default_is_standard_error() -> None:
    program = (
        "from store.observe.logging import configure, get_logger;"
        "configure('json', 'info'); get_logger('a').info('hello')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, json.loads(done.stderr)["event"]) == (b"", "hello")


def test_kinds_beyond_the_bound_share_a_count() -> None:
    gate = FloodGate()
    assert all(gate.admit(str(number)) for number in range(MAX_LOG_KINDS + LOG_BURST_EVENTS))
    assert [gate.admit(kind) for kind in ("d", "e", "0")] == [False, False, True]
    assert gate.drain(LOG_INTERVAL_S) == [("other events", 2)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=200))
def test_every_event_is_either_passed_or_counted(events: list[tuple[str, int]]) -> None:
    gate = FloodGate()
    now_s, passed, counted = 0.0, Counter[str](), 0
    for kind, pause_s in events:
        now_s += pause_s
        counted += sum(count for _, count in gate.drain(now_s))
        passed[kind] += gate.admit(kind)
    counted += sum(count for _, count in gate.drain(now_s + LOG_INTERVAL_S))
    assert passed.total() + counted == len(events)
    assert counted == gate.total
