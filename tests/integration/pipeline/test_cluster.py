"""Jobs on a cluster: the same results as on this machine, also when a worker dies.

One standalone cluster of three processes, and a Spark Connect server on it, for all these tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import diff
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages, computed_in, fingerprint
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.conftest import QUICK_JVM, QUICK_START
from tests.integration.pipeline.test_diff import lacking
from tests.integration.pipeline.world import (
    DAY,
    TODAY,
    in_lake,
    marks,
    more,
    plain,
    rows,
    stored_ids,
)
from tests.support.command import Command, Ended
from tests.support.node import clean_environment
from tests.support.pages import ROOT
from tests.support.spark import PATIENCE_S, Cluster, ports_of, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    **QUICK_START,
}

OF_EVERY_JVM = "-Darrow.enable_unsafe_memory_access=true"
SETTINGS_OF_TESTS = QUICK_JVM.split()[0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), SETTINGS, QUICK_JVM)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[str]:
    """Return the address of a Spark Connect server."""
    with cluster.connect_server() as address:
        yield address


def run(url: str, server: str, *arguments: str) -> Ended:
    """Run a job through a Spark Connect server; its exit code may be 1."""
    command = Command({"STORENODE_DATABASE_URL": url})
    process = command.start("pipeline", *arguments, "--master", server)
    out, err = process.communicate(timeout=PATIENCE_S)
    ended = Ended(process.returncode, out.decode(), err.decode())
    assert ended.code in {0, 1}, ended.err
    return ended


def answer(url: str, server: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = run(url, server, *arguments, "--json", "--quiet").objects[0]
    return found


def test_jobs_come_to_the_same_through_a_connect_server(
    spark: SparkSession,
    server: str,
    url: str,
    tmp_path: Path,
    new_database: Callable[[], str],
) -> None:
    lake, other = tmp_path / "lake", new_database()
    done = run(url, server, "archive", str(lake), "--json")
    assert done.code == 0, done.err
    assert done.objects[0]["messages"] == len(stored_ids(url))
    assert f"archive: begins, {len(stored_ids(url)):,} messages" in done.err
    assert in_lake(lake) == sorted(stored_ids(url))
    assert len(marks(url)) == done.objects[0]["hours_marked"] > 0
    here = ArchiveMessages(spark, DeltaArchive(str(lake)))
    found = answer(url, server, "fingerprint", str(lake), "--level", "minute")
    computed = computed_in(spark, here.archive, "minute")
    assert found == fingerprint(str(lake), "minute", computed).as_json()
    more(other, *(plain(90_000 + number, TODAY - DAY + number) for number in range(9)))
    checked = answer(other, server, "verify", str(lake), "--with-database")
    assert checked == verify(spark, VerifyJob(DeltaArchive(str(lake)), other)).as_json()
    assert not checked["sound"]
    there, near = tmp_path / "there", tmp_path / "near"
    differ = answer(other, server, "diff", str(lake), "--output", str(there))
    local = diff(spark, here, DatabaseMessages(spark, other, "the database"), output=str(near))
    assert {**differ, "output": None} == {**local.as_json(), "output": None}
    assert (differ["first_lacks"], differ["second_lacks"]) == (9, len(stored_ids(url)))
    for side in ("first", "second"):
        assert lacking(there, side) == lacking(near, side) != []


def test_a_notebook_reads_an_archive_through_a_connect_server(server: str, archived: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.pipeline.notebook"]
    ended = subprocess.run(
        [*command, "examples/archive.ipynb"],
        env=clean_environment(SPARK_REMOTE=server, ARCHIVE=str(archived)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert " messages of channels on " in ended.stdout
    assert "PartitionFilters: [" in ended.stdout
    assert "PushedFilters: [IsNotNull(channel)]" in ended.stdout


def test_a_job_survives_a_worker_that_dies(
    spark: SparkSession, cluster: Cluster, url: str, tmp_path: Path
) -> None:
    """Let a worker fail while every worker is reading."""
    lake = tmp_path / "lake"
    with sds_locked(url):
        job = cluster.submit("archive", str(lake), "--database-url", url, "--json", "--quiet")
        try:
            wait_for(lambda: all_read(job.poll(), cluster, url), "every worker reads")
            for each in executors(cluster):
                assert each.index(OF_EVERY_JVM) < each.index(SETTINGS_OF_TESTS), (
                    "what is given wins"
                )
        except BaseException:
            job.kill()
            raise
        cluster.kill(cluster.workers[0])
    out, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, err.decode()
    assert json.loads(out)["messages"] == len(stored_ids(url))
    assert in_lake(lake) == sorted(stored_ids(url))
    assert verify(spark, VerifyJob(DeltaArchive(str(lake)), url)).sound


def executors(cluster: Cluster) -> list[list[str]]:
    """Return the command lines of the JVMs that run the newest application's tasks."""
    lines = []
    for each in (each for worker in cluster.workers for each in worker.descendants()):
        with suppress(psutil.Error):  # it has ended
            lines.append(each.cmdline())
    found = [line for line in lines if any("CoarseGrainedExecutor" in word for word in line)]
    # Those of an application that has just ended may be there still.
    newest = max(line[line.index("--app-id") + 1] for line in found)
    found = [line for line in found if newest in line]
    assert len(found) == len(cluster.workers)
    return found


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
