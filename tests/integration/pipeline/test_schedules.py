"""The line of docs/pipeline.md for cron, run as it stands there but for paths, and for Airflow."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families

from storenode.cli.main import main
from tests.integration.pipeline.world import TODAY, more, note, plain
from tests.support.pages import ROOT, blocks, files, section
from tests.unit.builders import entry

NIGHT: Final = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Every night")
DAG_FILE: Final = "storenode_nightly.py"
PROGRAM: Final = "/opt/storenode/bin/storenode"
# Minute, hour, day, month, day of the week; cron makes an unescaped % the start of standard input.
_CRON: Final = re.compile(r"([\d*]+) +([\d*]+) +\* +\* +\*  +(\w+)  +([^%\n]+)\n")

pytestmark = pytest.mark.usefixtures("spark")


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
