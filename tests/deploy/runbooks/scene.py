"""A node in trouble, and an operator who follows the page of the alert."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from tests.deploy.runbooks.history import History
from tests.deploy.runbooks.page import Page, filled_in, is_sql
from tests.faults.processes import metrics
from tests.support.command import Command, Ended
from tests.support.gateway import GatewayProcess
from tests.support.node import COMMAND, NodeProcess
from tests.support.postgres import PostgresServer

TIMEOUT_S = 600.0
"""Jobs of the archive take a minute where several tests share a small machine."""


@dataclass
class Incident:
    """A page of which a case makes the fault, runs the commands, and sees the end.

    As a context manager it records that the alert's expression is not true at the beginning of the
    block, and checks at its end that it is false again, and that the page was followed.

    ``values``: what stands for the page's placeholders. ``admin_url``: where its SQL runs.
    ``inside``: puts a command where the node's disk is mounted. ``left``: commands that are not
    run, by their beginning, each with the reason. ``before_min``, ``after_min``: for how long the
    metrics at the beginning and at the end stand; 0: nothing is recorded at the beginning.
    """

    page: Page
    history: History
    targets: Sequence[str]
    finished: list[str]
    values: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    admin_url: str = ""
    inside: Callable[[list[str]], list[str]] = list
    left: Mapping[str, str] = field(default_factory=dict)
    before_min: int = 60
    after_min: int = 90
    _run: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        if self.before_min:
            self.history.lasts(self.before_min, *self.targets, expected=False)
        return self

    def fires(self, minutes: int = 3) -> None:
        """Record that the expression is true now."""
        self.history.lasts(minutes, *self.targets, expected=True)

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            return
        self.history.lasts(self.after_min, *self.targets, expected=False)
        assert True in self.history.expected, f"{self.page.name}: the alert was never true"
        self.history.check(self.page.alert)
        open_ = [
            each
            for each in self.page.commands()
            if not any(run.startswith(each) for run in self._run)
            and not each.startswith(tuple(self.left))
        ]
        assert not open_, f"{self.page.name}.md: not run: {open_}"
        self.finished.append(self.page.name)

    def do(self, prefix: str, *, codes: Sequence[int] = (0,), **values: str) -> Ended:
        """Run the command of the page that begins so; SQL gives its rows as lines."""
        command = self.page.command(prefix)
        self._run.add(command)
        line = filled_in(command, {**self.values, **values})
        if is_sql(line):
            return Ended(0, self._ask(line), "")
        own = line.startswith("storenode ")
        words = [COMMAND, *shlex.split(line)[1:]] if own else ["sh", "-c", line]
        program, *arguments = self.inside(words)
        ended = Command(self.env, (program,), timeout_s=TIMEOUT_S)(*arguments)
        assert ended.code in codes, f"{line}: {ended}"
        return ended

    def _ask(self, statement: str) -> str:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement))
            rows = cursor.fetchall() if cursor.description else []
        return "\n".join("|".join(map(str, row)) for row in rows)


@dataclass
class World:
    """The means of a case: a directory, a Postgres server, and how a database for a node is made.

    ``resolved`` grows with the pages whose alert was true, and is not any more.
    """

    directory: Path
    postgres: PostgresServer
    new_store: Callable[[], str]
    resolved: list[str] = field(default_factory=list)

    def incident(self, name: str, node: NodeProcess, **details: Any) -> Incident:  # noqa: ANN401
        """Return an incident of a page at a node; ``details`` are fields of `Incident`."""
        details = {"targets": (node.metrics,), "env": environment(node), **details}
        if node.database_url is not None:
            details.setdefault("admin_url", superuser(node))
        return Incident(Page(name), History(self.directory), finished=self.resolved, **details)

    def gateway_incident(self, name: str, gateway: GatewayProcess, **details: Any) -> Incident:  # noqa: ANN401
        """Return an incident of a page at a gateway."""
        history, targets = History(self.directory, "storenode-gateway"), (gateway.metrics,)
        return Incident(Page(name), history, targets, self.resolved, **details)


def superuser(node: NodeProcess) -> str:
    """Return the URL of a node's database on the shared server, for its superuser."""
    return database_url(node).replace("//storenode@", "//postgres@")


def database_url(node: NodeProcess) -> str:
    """Return the URL of the database that a node was given."""
    assert node.database_url is not None
    return node.database_url


def environment(node: NodeProcess) -> dict[str, str]:
    """Return what an operator has set who works beside a node."""
    env = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
    if node.database_url:
        return {**env, "STORENODE_DATABASE_URL": node.database_url}
    return {**env, "STORENODE_DATA_DIR": str(node.data_dir)}


def metric(node: NodeProcess, name: str, **labels: str) -> float:
    """Return one sample of a node, or the sum of those with these labels; 0 when there is none."""
    wanted = set(labels.values())
    return sum(
        value
        for (found, *has), value in metrics(node).items()
        if found == name and wanted <= {*has}
    )


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements as the role of the URL, and return the rows of the last."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(sql.SQL(statement))
        return cursor.fetchall() if cursor.description else []
