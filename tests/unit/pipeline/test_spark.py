"""Spark of a job: what is checked before it starts, its progress and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

import pytest

from store.pipeline.errors import PipelineError
from store.pipeline.spark import (
    TerminatedError,
    _choose_python,
    _not_started,
    _relay,
    ended_by_signals,
    interrupt_here,
    require_spark,
    shown,
)


@pytest.fixture(autouse=True)
def no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)
    monkeypatch.setattr("store.pipeline.spark.require_java", lambda: None)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("spark://127.0.0.1:1", "The Spark master 127.0.0.1:1 could not be reached"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "The Spark master 127.0.0.1:1 could not be reached"),
        ("spark://", "is no address of a Spark master: it is spark://HOST:PORT"),
        ("spark://127.0.0.1:odd", "is no address of a Spark master: it is spark://HOST:PORT"),
    ],
)
def test_an_absent_master_is_an_error(url: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as caught:
        require_spark(url)
    assert caught.value.code in {1, 2}
    assert len(caught.value.sentence.splitlines()) == 1
    assert sentence in caught.value.sentence


def test_of_several_masters_one_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_spark(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(
    ("master", "env", "chosen"),
    [
        (None, "/usr/bin/other", sys.executable),
        ("local[2]", "/usr/bin/other", sys.executable),
        ("spark://host:7077", "/usr/bin/other", "/usr/bin/other"),
        ("spark://host:7077", None, sys.executable),
    ],
)
def test_workers_of_this_machine_are_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, master: str | None, env: str | None, chosen: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", env or "")
    if env is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    _choose_python(master)
    assert os.environ["PYSPARK_PYTHON"] == chosen


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "Spark's JVM has ended at its start",
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nat x",
            "the same spark.authenticate.secret",
        ),
        ("[SOME.ERROR] odd", "Spark gave up: [SOME.ERROR] odd"),
    ],
)
def test_why_spark_did_not_start_is_reported(said: str, sentence: str) -> None:
    assert sentence in _not_started(Exception(said)).sentence


def test_the_begin_and_the_end_are_shown() -> None:
    said: list[str] = []
    with shown(said.append, "verify", 1_000):
        assert said == ["verify: begins, 1,000 messages"]
    assert said[-1].startswith("verify: done in ")
    assert said[-1].endswith(" messages/s")


def test_stray_lines_of_a_jvm_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.write(write, b"WARNING: Using incubator modules: x\nwrong\n[Stage 1:==> 2 of 8]\r")
    os.close(write)
    _relay(read)
    assert capfd.readouterr().err == "wrong\n[Stage 1:==> 2 of 8]\r"


def test_both_signals_are_exceptions_within_the_block(caplog: pytest.LogCaptureFixture) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(TerminatedError), ended_by_signals():
        terminated_while_py4j_waits()
    assert caplog.messages == ["something else"]
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        interrupted_after_a_library_took_the_signal()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def terminated_while_py4j_waits() -> None:
    logging.getLogger().error("KeyboardInterrupt while sending command.")
    logging.getLogger().error("something else")
    with pytest.raises(TerminatedError):
        os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError("the library fails in its own way")


def interrupted_after_a_library_took_the_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_here()
    os.kill(os.getpid(), signal.SIGINT)
