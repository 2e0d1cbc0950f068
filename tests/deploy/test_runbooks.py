"""Runbooks on real nodes: a fault, its alert, the commands of its page, and the alert resolved.

Prometheus itself evaluates the rules, `for` included, over what a node exposes: promtool extends
one scrape over an hour, so that no test waits for it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import yaml
from psycopg import sql

from tests.deploy.tools import DEPLOY, ROOT, run
from tests.integration.run.helpers import get
from tests.support.fleet import eventually
from tests.support.node import NodeProcess, clean_environment, running_node
from tests.support.postgres import PostgresServer

RULES = DEPLOY / "prometheus/rules/storenode.yml"
SAMPLE = re.compile(r"(storenode_\w+)(?:\{(.*)\})? (\S+)")


def page(name: str) -> str:
    """Text of a runbook, each paragraph a line."""
    return (ROOT / f"docs/runbooks/{name}.md").read_text("utf-8").replace("\n  ", " ")


def command(name: str, program: str) -> str:
    """The one command of a page that begins with a program's name."""
    found: list[str] = re.findall(rf"`({program} [^`]+)`", page(name))
    assert len(found) == 1, f"{name}.md: {found}"
    return found[0]


def scrape(node: NodeProcess) -> list[dict[str, str]]:
    """What the node exposes now, as series that stay so for an hour."""
    lines = map(SAMPLE.fullmatch, get(node.metrics, "/metrics")[1].splitlines())
    return [
        {
            "series": f'{line[1]}{{job="storenode",instance="node",{line[2] or ""}}}',
            "values": f"{line[3]}x60",
        }
        for line in lines
        if line
    ]


def check(alert: str, node: NodeProcess, *, fires: bool, directory: Path) -> None:
    """Let Prometheus say whether an alert fires after an hour of what the node exposes now."""
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    expected = {
        "expr": expression,
        "eval_time": "1h",
        "exp_samples": [{"labels": "{}", "value": int(fires)}],
    }
    tests = [
        {"interval": "1m", "input_series": scrape(node), "promql_expr_test": [expected]},
    ]
    path = directory / f"{alert}-{fires}.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}), "utf-8")
    run("promtool", "test", "rules", str(path))


def exposes(node: NodeProcess, sample: str) -> None:
    """Wait until a node exposes a sample."""
    eventually(lambda: sample in get(node.metrics, "/metrics")[1].splitlines())


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator pastes it."""
    return subprocess.run(
        ["sh", "-c", line],
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_database_that_rejects_connections(
    postgres: PostgresServer, database_url: str, tmp_path: Path
) -> None:
    run("psql", "--version")
    name = sql.Identifier(database_url.rpartition("/")[2])
    allow = sql.SQL("alter database {} allow_connections {}")
    probe = command("database-unreachable", "psql")
    with (
        running_node(tmp_path / "data", database_url=database_url) as node,
        psycopg.connect(postgres.admin_url, autocommit=True) as administrator,
    ):
        check("StorenodeDatabaseUnreachable", node, fires=False, directory=tmp_path)
        administrator.execute(allow.format(name, sql.SQL("false")))
        administrator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
            (database_url.rpartition("/")[2],),
        )
        exposes(node, "storenode_database_up 0.0")
        check("StorenodeDatabaseUnreachable", node, fires=True, directory=tmp_path)
        reason = "not currently accepting connections"
        assert reason in shell(probe, STORENODE_DATABASE_URL=database_url).stderr
        assert reason in next(line for line in node.log().splitlines() if "database_away" in line)
        administrator.execute(allow.format(name, sql.SQL("true")))
        exposes(node, "storenode_database_up 1.0")
        check("StorenodeDatabaseUnreachable", node, fires=False, directory=tmp_path)
        assert "\n f\n" in shell(probe, STORENODE_DATABASE_URL=database_url).stdout
