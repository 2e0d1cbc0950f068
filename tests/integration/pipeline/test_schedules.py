"""The lines of docs/pipeline.md for cron and for Airflow: run as they stand there, but for paths.

The real Airflow runs the task where ``AIRFLOW`` names its program: `make check-airflow` installs
it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families

from storenode.cli.main import main
from tests.integration.pipeline.conftest import QUICKLY
from tests.integration.pipeline.world import TODAY, more, note, plain
from tests.support.node import COMMAND, clean_environment
from tests.support.pages import ROOT, blocks, files, section
from tests.unit.builders import entry

NIGHT: Final = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Every night")
DAG_FILE: Final = "storenode_nightly.py"
TIMEOUT_S: Final = 480.0
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


def run(command: str, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command line of the page in this process, with the session that all tests share."""
    words = shlex.split(command)
    given = dict(env)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert words.pop(0) == PROGRAM
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_nights_of_cron_and_of_airflow_archive_and_find_what_is_missing(
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the line for cron, and the next night the task of Airflow, which finds a gap."""
    database_url = new_database()
    more(database_url, *(plain(each, TODAY + each) for each in range(5)))
    (line,) = [each for each in blocks(NIGHT, "text") if PROGRAM in each]
    fields = _CRON.fullmatch(line)
    assert fields is not None
    assert (int(fields[1]) < 60, int(fields[2]) < 24, fields[3]) == (True, True, "storenode")
    places = {
        "postgresql:///storenode": shlex.quote(database_url),
        "/archive/one": f"{tmp_path}/lake",
        "/var/lib/node_exporter": str(tmp_path),
    }
    assert run(placed(fields[4], places), {}, monkeypatch) == 0
    printed = capsys.readouterr()
    assert ("Archived 5 messages" in printed.out, printed.err) == (True, "")
    metrics = (tmp_path / "storenode-nightly.prom").read_text()
    values = {
        sample.labels.get("figure", family.name): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    assert (values["storenode_pipeline_exit_code"], values["verify_messages"]) == (0, 5)

    more(database_url, entry(note("late", 1, "carol", "lost"), timestamp=TODAY))
    program = placed(files(NIGHT)[DAG_FILE], {"s3://bucket/archive": f"{tmp_path}/lake"})
    compile(program, DAG_FILE, "exec")
    (command,) = re.findall(r'bash_command="(.*)"', program)
    assert 'env={"STORENODE_DATABASE_URL": "{{ conn.storenode.get_uri() }}"}' in program
    # A connection's URI begins with its type, which Airflow calls postgres.
    uri = database_url.replace("postgresql://", "postgres://")
    code = run(command, {"STORENODE_DATABASE_URL": uri}, monkeypatch)
    assert_gap_found(code, capsys.readouterr().out)
    only = [("result", "=", "channels")]
    channels = DeltaTable(tmp_path / "lake" / "findings").to_pyarrow_table(filters=only).to_pylist()
    assert [(row["channel"], row["missing"]) for row in channels] == [("notes", 1)]


def assert_gap_found(code: int, printed: str) -> None:
    """Assert that the job failed, since a message names parents that are missing."""
    assert code == 1, printed
    found, _ = json.JSONDecoder().raw_decode(printed, printed.index('{"sound"'))
    assert (found["verify"]["sound"], found["audit"]["missing"] > 0) == (True, True)
    assert list(found) == ["sound", "archive", "verify", "audit"]
    assert (found["sound"], found["audit"]["sound"]) == (False, False)
    assert found["verify"]["compared_with_database"]


if "AIRFLOW" in os.environ:

    def test_the_real_airflow_runs_the_task(url: str, tmp_path: Path) -> None:
        places = {PROGRAM: COMMAND, "s3://bucket/archive": f"{tmp_path}/lake {shlex.join(QUICKLY)}"}
        dags = tmp_path / "dags"
        dags.mkdir()
        (dags / DAG_FILE).write_text(placed(files(NIGHT)[DAG_FILE], places))
        env = clean_environment(
            AIRFLOW_HOME=str(tmp_path),
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY="1",
            AIRFLOW_CONN_STORENODE=url,
        )

        def airflow(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [os.environ["AIRFLOW"], *arguments],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        assert airflow("db", "migrate").returncode == 0
        done = airflow("dags", "test", "storenode")
        assert_gap_found(done.returncode, done.stdout)
