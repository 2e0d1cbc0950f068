"""The index in memory, as operators see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.run.helpers import get
from tests.support.fleet import Fleet, made, publish, status
from tests.support.node import NodeProcess
from tests.support.polling import eventually

HOUR_NS = 3_600 * 10**9


@pytest.fixture
def fleet(tmp_path: Path, new_store: Callable[[], str]) -> Iterator[Fleet]:
    nodes = Fleet(tmp_path, new_database=new_store)
    try:
        yield nodes
    finally:
        nodes.close()


def entries(node: NodeProcess) -> int:
    """What the metric says; every question is a whole request."""
    families = text_string_to_metric_families(get(node.metrics, "/metrics")[1])
    (found,) = [family for family in families if family.name == "storenode_index_entries"]
    return int(found.samples[0].value)


def until_it_has(node: NodeProcess, count: int) -> None:
    """Wait for the index to follow the commits, or to be made after a start."""
    eventually(lambda: entries(node) == count)


def test_it_has_all_messages_also_after_a_restart(fleet: Fleet) -> None:
    node = fleet.start("--sync-range", "1h")
    now_ns = time.time_ns()
    asyncio.run(publish(node, made(50, now_ns, 600.0)))
    asyncio.run(publish(node, made(20, now_ns - 3 * HOUR_NS, 600.0, seed=2)))
    until_it_has(node, 70)
    found = status(node)
    assert int(found["index_entries"]) == int(found["messages"]) == 70
    node.terminate()
    node.start()
    until_it_has(node, 70)
