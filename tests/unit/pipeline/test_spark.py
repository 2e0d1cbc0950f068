"""Spark of a job: what is checked before it starts, its settings, its progress and its end."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pyspark
import pytest

from store.pipeline.errors import PipelineError
from store.pipeline.spark import (
    TerminatedError,
    _choose_python,
    _java_options,
    _not_started,
    _relay,
    ended_by_signals,
    interrupt_here,
    require_spark,
    shown,
)


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "SPARK_ENV_LOADED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("store.pipeline.spark.require_java", lambda: None)


def refusal(master: str | None = None) -> str:
    with pytest.raises(PipelineError) as caught:
        require_spark(master)
    assert caught.value.code in {1, 2}
    assert len(caught.value.sentence.splitlines()) == 1
    return caught.value.sentence


@pytest.mark.parametrize(
    ("jar", "found"), [("spark-core_2.12-3.5.1.jar", "Spark 3.5.1"), ("", "no")]
)
def test_another_spark_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar: str, found: str
) -> None:
    tmp_path.joinpath("jars").mkdir()
    if jar:
        tmp_path.joinpath("jars", jar).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert f"SPARK_HOME names {tmp_path}, which holds {found}" in refusal()
    assert pyspark.__version__ in refusal("spark://127.0.0.1:1")


def test_the_spark_of_pyspark_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf a=b pyspark-shell")
    require_spark(None)


@pytest.mark.parametrize("arguments", ["", "--version", "--master local"])
def test_arguments_with_which_no_spark_answers_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert refusal().startswith("PYSPARK_SUBMIT_ARGS must end with pyspark-shell")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sc://", "is no address of a Spark Connect server"),
        ("sc://127.0.0.1:1", "127.0.0.1:1 could not be reached"),
        ("sc://127.0.0.1:odd", "is no address of a Spark Connect server: it is sc://HOST:PORT"),
        ("spark://127.0.0.1:1", "The Spark master 127.0.0.1:1 could not be reached"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "The Spark master 127.0.0.1:1 could not be reached"),
        ("spark://", "is no address of a Spark master: it is spark://HOST:PORT"),
    ],
)
def test_an_absent_server_is_an_error(url: str, said: str) -> None:
    assert said in refusal(url)


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


@pytest.mark.parametrize("variable", [None, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_a_collector_that_was_chosen_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """Check it, since no JVM starts with two of them."""
    collector = re.compile(r"-XX:\+Use\w+GC")
    assert collector.findall(_java_options("")) == ["-XX:+UseParallelGC"]
    given = "-Xss4m -XX:+UseZGC"
    assert collector.findall(_java_options(given)) == ["-XX:+UseZGC"]
    assert _java_options(given).endswith(given)
    if variable is not None:
        monkeypatch.setenv(variable, "-XX:+UseG1GC")
        assert collector.findall(_java_options("")) == []


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


def test_both_signals_are_exceptions_within_the_block_only() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(TerminatedError), ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        interrupted_after_a_library_took_the_signal()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def interrupted_after_a_library_took_the_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_here()
    os.kill(os.getpid(), signal.SIGINT)


def test_what_py4j_says_of_it_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with ended_by_signals():
        logging.getLogger().error("KeyboardInterrupt while sending command.")
        logging.getLogger().error("something else")
    assert caplog.messages == ["something else"]
