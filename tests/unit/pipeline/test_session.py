"""What Spark's JVM is started with."""

from __future__ import annotations

import re

import pytest

from store.pipeline.spark import _java_options, _not_started

COLLECTOR = re.compile(r"-XX:\+Use\w+GC")


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)


def test_a_collector_that_was_chosen_is_the_only_one() -> None:
    """With two of them no JVM starts."""
    assert COLLECTOR.findall(_java_options("")) == ["-XX:+UseParallelGC"]
    given = "-Xss4m -XX:+UseZGC"
    assert COLLECTOR.findall(_java_options(given)) == ["-XX:+UseZGC"]
    assert _java_options(given).endswith(given)


@pytest.mark.parametrize("name", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_the_environment_may_choose_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-XX:+UseG1GC")
    assert COLLECTOR.findall(_java_options("")) == []


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
def test_why_spark_did_not_start_is_told(said: str, sentence: str) -> None:
    assert sentence in _not_started(Exception(said)).sentence
