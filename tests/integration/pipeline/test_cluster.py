"""A job on a standalone cluster of three processes, of which one dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.conftest import QUICK_JVM, QUICK_START
from tests.integration.pipeline.world import in_lake, rows, stored_ids, verified
from tests.support.spark import PATIENCE_S, Cluster, ports_of, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    **QUICK_START,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), SETTINGS, QUICK_JVM)
    yield made
    made.stop()


def test_a_job_survives_a_worker_that_dies(
    spark: SparkSession, cluster: Cluster, url: str, tmp_path: Path
) -> None:
    """Let a worker fail while every worker is reading."""
    lake = tmp_path / "lake"
    with sds_locked(url):
        job = cluster.submit("archive", str(lake), "--database-url", url, "--json", "--quiet")
        try:
            wait_for(lambda: all_read(job.poll(), cluster, url), "every worker reads")
        except BaseException:
            job.kill()
            raise
        cluster.kill(cluster.workers[0])
    out, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, err.decode()
    assert json.loads(out)["messages"] == len(stored_ids(url))
    assert in_lake(lake) == sorted(stored_ids(url))
    assert verified(spark, lake, url=url).sound


@contextmanager
def sds_locked(url: str) -> Iterator[None]:
    """Lock the table of SDS, which tasks read and plans do not, for the length of a block."""
    with psycopg.connect(url) as connection:
        connection.execute("lock table storenode.sds in access exclusive mode")
        yield


def all_read(ended: int | None, cluster: Cluster, url: str) -> bool:
    """Return True if a task of every worker waits for messages."""
    assert ended is None, "the job ended before it was to be disturbed"
    waiting = {
        port
        for (port,) in rows(
            url,
            "select client_port from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'",
        )
    }
    return all(ports_of(each.descendants()) & waiting for each in cluster.workers)
