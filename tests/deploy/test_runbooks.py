"""The runbooks on real nodes: a fault, its alert, the commands of its page, and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.runbooks.archives import archives
from tests.deploy.runbooks.clusters import clusters
from tests.deploy.runbooks.databases import calls, maintenance
from tests.deploy.runbooks.disks import disks
from tests.deploy.runbooks.gateways import gateways
from tests.deploy.runbooks.nodes import nodes
from tests.deploy.runbooks.page import RUNBOOKS
from tests.deploy.runbooks.peers import peers, sets
from tests.deploy.runbooks.scene import World
from tests.support.postgres import PostgresServer

CASES: Final[Mapping[Callable[[World], None], tuple[str, ...]]] = {
    nodes: ("node-down", "no-targets", "node-not-ready"),
    calls: (
        *("connections-exhausted", "publish-slow", "reads-slow", "calls-failing"),
        *("database-unreachable", "publish-errors"),
    ),
    maintenance: (
        *("retention-failing", "maintenance-failing", "partitions-missing", "dead-tuples"),
        *("clock-wrong", "clock-differs"),
    ),
    peers: (
        *("peer-unreachable", "sync-refused", "peer-silent"),
        *("unread-events-ageing", "gossip-peer-cut-off"),
    ),
    clusters: ("standby-missing", "replication-lag", "commits-lost", "database-host-refused"),
    disks: ("disk-running-out", "disk-full", "postgres-restarting"),
    archives: ("retention-blocked-by-archive", "archive-behind"),
    gateways: ("gateway-down", "gateway-without-node"),
    sets: ("forged-fingerprint", "differences-not-shrinking"),
}
"""The runbooks that each case carries out."""

NOT_HERE: Final[Mapping[str, str]] = {
    "node-restarting": "It asks systemd, Kubernetes and the kernel, which restart and kill nodes.",
    "archive-job-failed": "It asks systemd and Kubernetes, which run the jobs.",
    "nothing-commits": "Its faults are those of tests/faults/test_standby_away.py.",
    **dict.fromkeys(
        ("gateway-without-relay-peers", "gateway-topics-differ", "gateway-sync-refused"),
        "It asks peers of other operators; deploy/prometheus/tests plays its series.",
    ),
    "certificate-expiring": "Its commands are those of certificate-ending.",
    "certificate-ending": "Files are replaced by hand; test_certificates renews one.",
    "token-file-broken": "A file is edited by hand; the tests of tokens do it.",
}
"""Pages that are not carried out here, and why."""


# The archive's takes three minutes where several tests share a small machine.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_runbook_is_carried_out(
    case: Callable[[World], None],
    tmp_path: Path,
    postgres: PostgresServer,
    new_store: Callable[[], str],
) -> None:
    world = World(tmp_path, postgres, new_store)
    case(world)
    assert sorted(world.resolved) == sorted(CASES[case])


def test_every_page_is_carried_out_or_says_why_not() -> None:
    carried_out = [page for pages in CASES.values() for page in pages]
    pages = [path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README"]
    assert sorted([*carried_out, *NOT_HERE]) == sorted(pages)
