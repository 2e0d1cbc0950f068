"""Runbooks of an archive that is not kept up to date."""

from __future__ import annotations

import asyncio
import time

from tests.deploy.runbooks.scene import World, environment, metric
from tests.integration.pipeline.conftest import QUICK_JVM, QUICK_SQL
from tests.support.fleet import made, publish
from tests.support.node import running_node
from tests.support.polling import eventually

HOUR_NS = 3_600 * 10**9
EXPIRED_NS = 84 * HOUR_NS
"""The age of a partition of a day that ended more than the retention ago, at any time of day."""
OFTEN = ("--max-clock-drift", "off", "--maintenance-interval", "1s")
WAITS = ("--retention", "2d", "--retention-confirm", "--retention-requires-archive")
OLDEST = "storenode_oldest_unarchived_timestamp_seconds"
QUICK = {
    "STORENODE_SPARK_CONF": " ".join(f"{name}={value}" for name, value in QUICK_SQL.items()),
    "JDK_JAVA_OPTIONS": QUICK_JVM,
}
ELSEWHERE = {
    "storenode pipeline diff": "the archive lacks nothing",
    "storenode pipeline restore": "the archive lacks nothing",
    "storenode pipeline verify": "the archive is not damaged",
}


def archives(world: World) -> None:
    """Publish what no archive has: older than the retention, and then a day and a half old."""
    url, data = world.new_store(), world.directory / "data"
    values = {"ARCHIVE": str(world.directory / "archive"), "30d": "2d"}
    with running_node(data, *OFTEN, database_url=url) as node:
        asyncio.run(publish(node, made(20, time.time_ns() - EXPIRED_NS)))
    with running_node(data, *OFTEN, *WAITS, database_url=url) as node:
        details = {"values": values, "env": environment(node) | QUICK}
        eventually(lambda: metric(node, OLDEST))
        with world.incident(
            "retention-blocked-by-archive", node, before_min=0, left=ELSEWHERE, **details
        ) as blocked:
            blocked.fires()
            assert "not archived" in blocked.do("storenode db prune", codes=(0, 1)).out
            blocked.do("storenode pipeline archive")
            eventually(lambda: not metric(node, OLDEST))
            dropped = {"event": "partition_dropped"}
            eventually(lambda: metric(node, "storenode_maintenance_events_total", **dropped))
        left = {"storenode pipeline archive ARCHIVE --dry-run": "tests/integration/pipeline"}
        with world.incident("archive-behind", node, left=left, **details) as behind:
            asyncio.run(publish(node, made(20, time.time_ns() - 36 * HOUR_NS)))
            eventually(lambda: metric(node, OLDEST))
            behind.fires()
            behind.do("storenode pipeline archive ARCHIVE")
            eventually(lambda: not metric(node, OLDEST))
