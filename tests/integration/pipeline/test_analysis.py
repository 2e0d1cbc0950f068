"""Plans, programs and queries of docs/pipeline.md and docs/pipeline-analysis.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from store.pipeline import archive as archiving
from store.pipeline import parquet
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import audit
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import TODAY, more, plain
from tests.support.pages import ROOT, blocks, section

JOBS = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Jobs")
ANALYSIS = (ROOT / "docs" / "pipeline-analysis.md").read_text(encoding="utf-8")
_, _, *PARTS = (ROOT / "examples" / "questions.sql").read_text(encoding="utf-8").split("\n\n")
QUESTIONS = {
    title.removeprefix("-- "): query for title, _, query in (part.partition("\n") for part in PARTS)
}


def test_ten_questions_have_answers(archived: Path) -> None:
    assert len(QUESTIONS) == 10
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        messages = DeltaTable(str(archived / "messages")).to_pyarrow_dataset()
        connection.register("messages", messages)
        found = {text: connection.execute(query).fetchall() for text, query in QUESTIONS.items()}
    assert all(found.values()), found
    assert ("notes", "lost", 1) in found[
        "missing parents: IDs that messages name and nobody claims in the channel"
    ]
    assert ("notes", "a", 2, 2) in found["duplicates: IDs that several messages claim"]
    late = "late arrivals: written before a message that they follow, by Lamport timestamp"
    assert ("notes", "late", 1) in found[late]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["DuckDB", "Polars", "Spark"])
def test_the_lines_of_the_page_read_an_archive(
    archived: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = blocks(section(ANALYSIS, engine), "python")[0]
    exec(lines.replace("ARCHIVE", str(archived)), {})
    assert "alice" in capsys.readouterr().out


def test_the_cells_of_the_notebook_read_an_archive(
    spark: SparkSession,
    archived: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ARCHIVE", str(archived))
    assert SparkSession.getActiveSession() is spark
    names: dict[str, object] = {}
    for cell in json.loads((ROOT / "examples" / "archive.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    printed = capsys.readouterr().out
    assert " messages of channels on " in printed
    assert "PartitionFilters: [" in printed
    assert "PushedFilters: [IsNotNull(channel)]" in printed


def simplified(plan: str) -> str:
    """Return a plan without numbers of columns and of stages, its branches as plain lines."""
    lines = (re.sub(r"^[\s:+*-]*(\(\d+\) )?", "", line) for line in plan.splitlines())
    return "\n".join(re.sub(r"#\d+L?|, \[plan_id=\d+\]", "", line) for line in lines)


@pytest.fixture
def plans(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return a list to which the plan of whatever a job computes is added, of several tasks."""
    partitions = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(partitions))
    spark.conf.set(partitions, "2")
    found: list[str] = []
    for name in ("collect", "count", "localCheckpoint"):
        compute = getattr(DataFrame, name)

        def computed(rows: DataFrame, *given: object, _compute=compute, **named: object) -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001
            found.append(simplified(rows._jdf.queryExecution().executedPlan().toString()))
            return _compute(rows, *given, **named)

        monkeypatch.setattr(DataFrame, name, computed)
    yield found
    spark.conf.set(partitions, before)


def test_the_plans_of_the_page_are_those_of_the_jobs(
    spark: SparkSession,
    url: str,
    lake_path: Path,
    plans: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (archiving, parquet):
        monkeypatch.setattr(module, "MIN_PORTION_ROWS", 1)  # so that there are several tasks
    opened = DeltaArchive(str(lake_path))
    more(url, *(plain(90_000 + number, TODAY + number) for number in range(9)))
    archive(spark, ArchiveJob(url, opened))
    verify(spark, VerifyJob(opened, url))
    audit(ArchiveMessages(spark, opened))
    shown = [part for block in blocks(JOBS, "text") for part in block.split("\n\n")]
    assert len(shown) == 4
    for part in shown:
        assert any(is_shown(part, plan) for plan in plans), "\n\n".join([part, *plans])


def is_shown(part: str, plan: str) -> bool:
    """Return True if a plan has the lines of a part of the page in order; `...` stands for text."""
    lines = iter(plan.splitlines())
    patterns = [
        ".*".join(map(re.escape, line.split("..."))) for line in simplified(part).splitlines()
    ]
    return all(any(re.match(pattern, line) for line in lines) for pattern in patterns)
