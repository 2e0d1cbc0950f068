"""docs/pipeline-analysis.md: its programs run, and DuckDB and Polars answer the same."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.delta import DeltaArchive
from storenode.sds import codec
from tests.integration.pipeline.world import TODAY, admitted, messages, write
from tests.support.pages import ROOT, files
from tests.support.postgres import PostgresServer
from tests.unit.builders import entry

PROGRAMS = files((ROOT / "docs" / "pipeline-analysis.md").read_text(encoding="utf-8"))


def said(name: str, lamport: int, sender: str, *parents: str) -> bytes:
    edges = [(parent, None) for parent in parents]
    return codec.encode("notes", name, sender_id=sender, lamport=lamport, parents=edges)


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession,
    postgres: PostgresServer,
    template_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An archive in which every question has an answer."""
    url = postgres.url(postgres.create_database(template_database))
    path = tmp_path_factory.mktemp("analysis") / "lake"
    told = [
        said("a", 1, "alice"),
        said("b", 2, "bob", "a"),
        said("late", 1, "carol", "a", "lost"),
        said("a", 1, "alice", "b"),
    ]
    made = [entry(each, timestamp=TODAY + place) for place, each in enumerate(told)]
    asyncio.run(write(url, [admitted([*messages(), *made])]))
    archive(spark, ArchiveJob(url, DeltaArchive(str(path))))
    return path


def answers(
    program: str, lake: Path, collect: Callable[[Any, Any], list[tuple[Any, ...]]]
) -> dict[str, list[tuple[Any, ...]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, str(lake)])
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(PROGRAMS[program], program, "exec"), names)
        return {
            question: [tuple(row) for row in collect(names, query)]
            for question, query in names["QUESTIONS"].items()
        }


def test_ten_questions_have_the_same_answers_by_duckdb_and_polars(lake: Path) -> None:
    def by_duckdb(names: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
        messages = names["messages"]
        names["duckdb"].register("messages", messages)
        found: list[tuple[Any, ...]] = names["duckdb"].sql(query).fetchall()
        return found

    def by_polars(_names: dict[str, Any], query: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
        found: list[tuple[Any, ...]] = query.collect().rows()
        return found

    first = answers("with_duckdb.py", lake, by_duckdb)
    other = answers("with_polars.py", lake, by_polars)
    assert len(first) == 10
    assert list(first) == list(other)
    for question, rows in first.items():
        assert rows == other[question], question
        assert rows, question
    assert ("notes", "lost", 1) in first[
        "missing parents: IDs that messages name and nobody claims in the channel"
    ]
    assert ("notes", "a", 2, 2) in first["duplicates: IDs that several messages claim"]
    late = "late arrivals: written before a message that they follow, by Lamport timestamp"
    assert ("notes", "late", 1) in first[late]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "page",
    [
        ("with_duckdb.py", "alice"),
        ("with_polars.py", "alice"),
        ("with_files.py", "ReadSchema: struct<channel:string,sender:string>"),
    ],
)
def test_a_program_of_the_page_runs(
    lake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: tuple[str, str],
) -> None:
    program, told = page
    (tmp_path / program).write_text(PROGRAMS[program], encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [program, str(lake)])
    runpy.run_path(str(tmp_path / program), run_name="__main__")
    assert told in capsys.readouterr().out
