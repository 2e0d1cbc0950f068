"""What a job needs to be run is missed before anything starts."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pyspark
import pytest

from store.pipeline.errors import PipelineError
from store.pipeline.spark import _choose_python, require_spark


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "SPARK_ENV_LOADED"):
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
def test_a_server_that_is_not_there_is_told(url: str, said: str) -> None:
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
