"""The programs of docs/pipeline-analysis.md and the queries of examples/questions.sql run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.delta import DeltaArchive
from storenode.sds import codec
from tests.integration.pipeline.world import TODAY, admitted, messages, write
from tests.support.pages import ROOT, blocks, section
from tests.support.postgres import PostgresServer
from tests.unit.builders import entry

PAGE = (ROOT / "docs" / "pipeline-analysis.md").read_text(encoding="utf-8")
_, _, *PARTS = (ROOT / "examples" / "questions.sql").read_text(encoding="utf-8").split("\n\n")
QUESTIONS = {
    title.removeprefix("-- "): query for title, _, query in (part.partition("\n") for part in PARTS)
}


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
    """Return an archive in which every question has an answer."""
    url = postgres.url(postgres.create_database(template_database))
    path = tmp_path_factory.mktemp("analysis") / "lake"
    payloads = [
        said("a", 1, "alice"),
        said("b", 2, "bob", "a"),
        said("late", 1, "carol", "a", "lost"),
        said("a", 1, "alice", "b"),
    ]
    made = [entry(each, timestamp=TODAY + place) for place, each in enumerate(payloads)]
    asyncio.run(write(url, [admitted([*messages(), *made])]))
    archive(spark, ArchiveJob(url, DeltaArchive(str(path))))
    return path


def test_ten_questions_have_answers(lake: Path) -> None:
    assert len(QUESTIONS) == 10
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        messages = DeltaTable(str(lake / "messages")).to_pyarrow_dataset()
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
    lake: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = blocks(section(PAGE, engine), "python")[0]
    exec(lines.replace("ARCHIVE", str(lake)), {})
    assert "alice" in capsys.readouterr().out
