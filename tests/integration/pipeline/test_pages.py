"""The pages about the pipeline: the quick start, the night, programs and queries."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import duckdb
import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from storenode.cli.main import main
from tests.integration.pipeline.world import TODAY, more, note, plain
from tests.support.node import running_node
from tests.support.pages import ROOT, Step, blocks, files, matches, run_in_one_shell, section, steps
from tests.unit.builders import entry

START = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Quick start")
PUBLISHING = next(body for body in blocks(START, "sh") if "storenode publish" in body)
ARCHIVING, VERIFYING, AUDITING, COMPARING, RESTORING, COMPARING_AGAIN = steps(START)

pytestmark = pytest.mark.usefixtures("spark")


def run_step(step: Step, folder: Path, code: int = 0) -> None:
    """Assert that a job prints what the page shows."""
    program, *arguments = shlex.split(step.command)
    assert program == "storenode"
    with chdir(folder), redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    assert matches(step.output, printed.getvalue()), printed.getvalue()


def test_the_quick_start(tmp_path: Path) -> None:
    with running_node(tmp_path / "storenode-data") as node:
        environment = {"STORENODE_NODE": node.listen}
        (printed,) = run_in_one_shell([Step(PUBLISHING, "")], environment, tmp_path)
        assert printed.count("STORED") == 2, printed
        run_step(ARCHIVING, tmp_path)
        run_step(VERIFYING, tmp_path)
        run_step(AUDITING, tmp_path, code=1)
        with running_node(tmp_path / "restored"):
            run_step(COMPARING, tmp_path, code=1)
            run_step(RESTORING, tmp_path)
            run_step(COMPARING_AGAIN, tmp_path)


NIGHT: Final = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Every night")
DAG_FILE: Final = "storenode_nightly.py"
PROGRAM: Final = "/opt/storenode/bin/storenode"
# Minute, hour, day, month, day of the week; cron makes an unescaped % the start of standard input.
_CRON: Final = re.compile(r"([\d*]+) +([\d*]+) +\* +\* +\*  +(\w+)  +([^%\n]+)\n")


def placed(text: str, places: Mapping[str, str]) -> str:
    """Return a text of the page with the tests' places in it; each of the page's must be there."""
    for shown, here in places.items():
        assert shown in text
        text = text.replace(shown, here)
    return text


def test_a_night_of_cron_archives_and_finds_what_is_missing(
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database_url = new_database()
    more(database_url, *(plain(each, TODAY + each) for each in range(5)))
    more(database_url, entry(note("late", 1, "carol", "lost"), timestamp=TODAY))
    (line,) = [each for each in blocks(NIGHT, "text") if PROGRAM in each]
    fields = _CRON.fullmatch(line)
    assert fields is not None
    assert (int(fields[1]) < 60, int(fields[2]) < 24, fields[3]) == (True, True, "storenode")
    places = {
        # A connection's URI begins with its type, which Airflow calls postgres.
        "postgresql:///storenode": shlex.quote(database_url.replace("postgresql:", "postgres:")),
        "/archive/one": f"{tmp_path}/lake",
        "/var/lib/node_exporter": str(tmp_path),
    }
    setting, program, *words = shlex.split(placed(fields[4], places))
    monkeypatch.setenv(*setting.split("=", 1))
    assert program == PROGRAM
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found, _ = json.JSONDecoder().raw_decode(printed.out, printed.out.index('{"sound"'))
    assert (ended.value.code, list(found)) == (1, ["sound", "archive", "verify", "audit"])
    assert [found[job]["sound"] for job in ("archive", "verify", "audit")] == [True, True, False]
    assert (found["sound"], found["verify"]["compared_with_database"]) == (False, True)
    metrics = (tmp_path / "storenode-nightly.prom").read_text()
    values = {
        sample.labels.get("figure", family.name): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    assert (values["storenode_pipeline_exit_code"], values["verify_messages"]) == (1, 6)
    only = [("result", "=", "channels")]
    channels = DeltaTable(tmp_path / "lake" / "findings").to_pyarrow_table(filters=only).to_pylist()
    assert [(row["channel"], row["missing"]) for row in channels] == [("notes", 1)]


def test_the_task_of_airflow_runs_the_same_command() -> None:
    program = files(NIGHT)[DAG_FILE]
    compile(program, DAG_FILE, "exec")
    (command,) = re.findall(r'bash_command="(.*)"', program)
    assert shlex.split(command)[:3] == [PROGRAM, "pipeline", "nightly"]
    assert 'env={"STORENODE_DATABASE_URL": "{{ conn.storenode.get_uri() }}"}' in program


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
