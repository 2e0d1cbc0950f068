"""The lines about the progress of a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from store.pipeline import spark
from store.pipeline.spark import shown, silent


class Session(SparkSession):
    """A session with two active stages, of which one has ended meanwhile."""

    def __init__(self, said: list[str]) -> None:
        stages = {1: SimpleNamespace(numCompletedTasks=2, numTasks=8), 2: None}
        tracker = SimpleNamespace(
            getActiveStageIds=lambda: [1, 2], getStageInfo=lambda stage: stages[stage]
        )
        self.context: Any = SimpleNamespace(statusTracker=lambda: tracker)
        self.said = said

    @property
    def sparkContext(self) -> Any:  # noqa: ANN401, N802 - Spark's name
        return self.context


def test_the_begin_the_tasks_and_the_end_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "INTERVAL_S", 0.001)
    said: list[str] = []
    with shown(Session(said), said.append, "verify", 1_000):
        while len(said) < 2:
            pass
    assert said[:2] == ["verify: begins, 1,000 messages", "verify: 2 of 8 tasks"]
    assert said[-1].startswith("verify: done in ")
    assert said[-1].endswith(" messages/s")


def test_a_quiet_job_shows_nothing() -> None:
    with shown(Session([]), silent, "verify"):
        pass
