"""Spark of a job: what is checked before it starts, its progress and its end."""

from __future__ import annotations

import logging
import os
import signal
import sys

import pytest

from store.pipeline.spark import (
    TerminatedError,
    _choose_python,
    _not_started,
    _relay,
    ended_by_signals,
    interrupt_here,
)


@pytest.fixture(autouse=True)
def no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)


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
