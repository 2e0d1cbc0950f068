"""What docs/pipeline.md hands to cron and to Airflow: run as it stands there, but for its paths.

Airflow is a stand-in, with as much of it as the page uses. The real one runs the same file where
``AIRFLOW`` names its program: `make check-airflow` installs it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
from jinja2 import Environment, StrictUndefined
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.pipeline.conftest import QUICKLY
from tests.integration.pipeline.world import TODAY, more, plain
from tests.support.node import COMMAND, clean_environment
from tests.support.pages import ROOT, blocks, files, section

NIGHT: Final = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Every night")
DAG_FILE: Final = "storenode_nightly.py"
TIMEOUT_S: Final = 480.0
PROGRAM: Final = "/opt/storenode/bin/storenode"
# Minute, hour, day, month, day of the week; cron makes an unescaped % the start of standard input.
_CRON: Final = re.compile(r"([\d*]+) +([\d*]+) +\* +\* +\*  +(\w+)  +([^%\n]+)\n")


def placed(text: str, places: Mapping[str, str]) -> str:
    """A text of the page with the tests' places in it; each of the page's must be there."""
    for shown, here in places.items():
        assert shown in text
        text = text.replace(shown, here)
    return text


def test_a_line_for_cron_archives_and_leaves_metrics(database_url: str, tmp_path: Path) -> None:
    more(database_url, *(plain(each, TODAY + each) for each in range(5)))
    (line,) = [each for each in blocks(NIGHT, "text") if PROGRAM in each]
    fields = _CRON.fullmatch(line)
    assert fields is not None
    assert (int(fields[1]) < 60, int(fields[2]) < 24, fields[3]) == (True, True, "storenode")
    command = placed(
        fields[4],
        {
            "postgresql:///storenode": shlex.quote(database_url),
            PROGRAM: COMMAND,
            "/archive/one": f"{tmp_path}/lake {shlex.join(QUICKLY)}",
            "/var/lib/node_exporter": str(tmp_path),
        },
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "LOGNAME": "storenode", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, b"Archived 5 messages" in done.stdout) == (0, True), done
    values = {
        sample.labels.get("figure", family.name): sample.value
        for family in text_string_to_metric_families(
            (tmp_path / "storenode-nightly.prom").read_text()
        )
        for sample in family.samples
    }
    assert (values["storenode_pipeline_exit_code"], values["verify_messages"]) == (0, 5)


def dag_file(archive: Path) -> str:
    """The page's file for Airflow, with the tests' places in it."""
    places = {PROGRAM: COMMAND, "s3://bucket/archive": f"{archive} {shlex.join(QUICKLY)}"}
    return placed(files(NIGHT)[DAG_FILE], places)


def made_by(program: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file gives the one DAG, and the one task of it, that it makes."""
    dags: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []

    @contextmanager
    def dag(dag_id: str, **given: object) -> Iterator[None]:
        assert not tasks
        yield
        dags.append({"dag_id": dag_id, **given})

    def operator(**given: object) -> None:
        tasks.append(given)

    parts = {
        "airflow.sdk.DAG": dag,
        "airflow.providers.standard.operators.bash.BashOperator": operator,
    }
    for name, part in parts.items():
        *packages, attribute = name.split(".")
        for length in range(1, len(packages) + 1):
            within = ".".join(packages[:length])
            monkeypatch.setitem(sys.modules, within, ModuleType(within))
        setattr(sys.modules[within], attribute, part)
    exec(compile(program, DAG_FILE, "exec"), {})
    ((given,), (task,)) = dags, tasks
    return given, task


def by_stand_in(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """What the task of the page comes to without Airflow: exit code and output."""
    given, task = made_by(dag_file(folder / "lake"), monkeypatch)
    assert (given["catchup"], len(given["schedule"].split())) == (False, 5)
    # A connection's URI begins with its type, which Airflow calls postgres.
    uri = url.replace("postgresql://", "postgres://")
    conn = {"storenode": SimpleNamespace(get_uri=lambda: uri)}
    template = Environment(undefined=StrictUndefined, autoescape=False).from_string
    env, command = (
        {name: template(text).render(conn=conn) for name, text in task["env"].items()},
        template(task["bash_command"]).render(conn=conn),
    )
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=clean_environment(**env) if task["append_env"] else env,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout.decode()


def by_airflow(folder: Path, url: str, _monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The same with Airflow, whose log has the task's output in it."""
    dags = folder / "dags"
    dags.mkdir()
    (dags / DAG_FILE).write_text(dag_file(folder / "lake"))
    env = clean_environment(
        AIRFLOW_HOME=str(folder),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY="1",
        AIRFLOW_CONN_STORENODE=url,
    )

    def airflow(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [os.environ["AIRFLOW"], *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )

    assert airflow("db", "migrate").returncode == 0
    done = airflow("dags", "test", "storenode")
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("by", [by_stand_in, *([by_airflow] if "AIRFLOW" in os.environ else [])])
def test_a_task_of_airflow_fails_with_the_job(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: Callable[[Path, str, pytest.MonkeyPatch], tuple[int, str]],
) -> None:
    code, printed = by(tmp_path, url, monkeypatch)
    # One message of the world names parents that nobody has.
    assert code == 1, printed
    found, _ = json.JSONDecoder().raw_decode(printed, printed.index('{"sound"'))
    assert (found["verify"]["sound"], found["audit"]["missing"] > 0) == (True, True)
