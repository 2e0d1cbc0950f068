"""Tests that the commands of the tour and the first steps with several nodes print what is shown.

Commands stand in ``console`` blocks after ``$ ``, and what follows them is their output, where
``...`` stands for any text. One shell runs a section, so that a command may use a variable of one
before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import grpcurl
from tests.support.command import Command
from tests.support.fleet import exchanging
from tests.support.node import running_node
from tests.support.pages import ROOT, as_shown, blocks, section, steps
from tests.support.postgres import copy_cluster

TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
SEVERAL_NODES = (ROOT / "docs" / "several-nodes.md").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a search path with the command, this Python and our grpcurl."""
    tools = tmp_path / "tools"
    tools.mkdir()
    return grpcurl.installed(tools)


def test_the_tour_is_as_the_page_shows_it(tmp_path: Path, path: str) -> None:
    todo = steps(TOUR)
    assert len(todo) == 19
    with running_node(copy_cluster(tmp_path / "node"), "--max-clock-drift", "off") as node:
        addresses = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
        as_shown(todo, {"PATH": path, **addresses})


def test_several_nodes_share_a_database_as_the_page_shows_it(
    empty_database_url: str, tmp_path: Path, path: str
) -> None:
    text = section(SEVERAL_NODES, "Several nodes on one Postgres")
    (setup,) = blocks(text, "sh")
    assert "\nstorenode db upgrade\n" in setup
    Command().ok("db", "upgrade", STORENODE_DATABASE_URL=empty_database_url)
    with (
        running_node(tmp_path / "node-a", STORENODE_DATABASE_URL=empty_database_url) as a,
        running_node(tmp_path / "node-b", STORENODE_DATABASE_URL=empty_database_url) as b,
    ):
        assert a.ready["database"] == b.ready["database"] == "external"
        as_shown(steps(text), {"PATH": path, "A": a.listen, "B": b.listen})


def test_two_stores_are_peers_as_the_page_shows_it(tmp_path: Path, path: str) -> None:
    own_schedule = ("--sync-interval", "0")
    with (
        running_node(copy_cluster(tmp_path / "a"), *own_schedule) as a,
        running_node(copy_cluster(tmp_path / "b"), *own_schedule, "--peer", a.peer) as b,
    ):
        env = {"PATH": path, "A": a.listen, "B": b.listen, "ADMIN_B": b.admin}
        for node in (a, b):
            exchanging(node, 1)
        as_shown(steps(section(SEVERAL_NODES, "A first peer")), env)
