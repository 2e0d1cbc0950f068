"""Live gossip between nodes that are processes of their own, and publishing that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.integration.run.helpers import sampled
from tests.support.fleet import Fleet, exchanging, holdings, status
from tests.support.node import NodeProcess
from tests.support.pages import ROOT, Step, as_shown, steps
from tests.support.polling import eventually

ON = ("--gossip", "on")
UNREAD_OF_TWO = "select from storenode.unread where needed <= 2 and expired_at is null limit 1"


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[Fleet]:
    nodes = Fleet(tmp_path_factory.mktemp("gossip"), new_database=new_store)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def triangle(fleet: Fleet) -> list[NodeProcess]:
    """Start three nodes, each of which has a stream with both others."""
    nodes: list[NodeProcess] = []
    for _ in range(3):
        nodes.append(fleet.start(*ON, peers=list(nodes)))
    for node in nodes:
        exchanging(node, 2)
    return nodes


def settle(node: NodeProcess) -> None:
    """Wait until nothing is unread at a node that the two others can confirm."""

    def look() -> bool:
        assert node.database_url is not None
        with psycopg.connect(node.database_url) as connection:
            return connection.execute(UNREAD_OF_TWO).fetchone() is None

    assert eventually(look)


SHOWN = steps((ROOT / "docs" / "gossip.md").read_text(encoding="utf-8"))
"""The steps of the operator's page in their order."""


def run_as_shown(node: NodeProcess, number: int, code: int = 0) -> None:
    """Run a command of the page; it must print what the page shows."""
    step = SHOWN[number]
    # Where the page gives no time, a slow machine may take more than the usual one.
    env = {"A": node.listen, "ADMIN_A": node.admin, "STORENODE_CONFIRM_TIMEOUT": "60s"}
    as_shown([Step(f"{step.command}\ntest $? = {code}", step.output)], env)


def test_the_page_for_operators_is_true_and_what_is_unread_survives_a_restart(
    triangle: list[NodeProcess],
) -> None:
    first, _, third = triangle
    run_as_shown(first, 0)
    settle(first)
    run_as_shown(first, 1)
    third.kill()
    exchanging(first, 1)
    run_as_shown(first, 2, code=1)
    run_as_shown(first, 3)
    # What the database holds is read for the metrics now and then.
    assert eventually(lambda: sampled(first.metrics, "storenode_unread_events") == 1)
    assert sampled(first.metrics, "storenode_unread_oldest_seconds") > 0
    first.kill()
    first.start()
    assert status(first)["gossip"]["unread"] == 1
    known = holdings(third)
    third.start()
    exchanging(first, 2)
    settle(first)
    assert eventually(lambda: len(holdings(third)) > len(known))
    run_as_shown(first, 4)
    assert len(SHOWN) == 5
