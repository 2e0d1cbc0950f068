"""The Spark session of all tests of the pipeline, and a database and an archive to begin with."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from chaos.ports import ReservedPort
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.delta import DeltaArchive
from store.pipeline.spark import spark_session
from tests.integration.database.sample_messages import admitted, write
from tests.integration.pipeline.world import batches
from tests.support.object_store import ObjectStore
from tests.support.postgres import PostgresServer

QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -Xshare:auto"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
QUICK_SQL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_FOLDER = Path(__file__).parent
_JARS = Path(pyspark.__file__).parent / "jars"
_MOST_CLASSES = ("spark-catalyst_", "spark-sql_", "spark-core_", "scala-library-", "hadoop-client-")
QUICK_PATH = ":".join(str(jar) for each in _MOST_CLASSES for jar in _JARS.glob(f"{each}*"))
"""Jars with most of the classes, before the 250 others: each class is looked for in one by one."""

QUICK_START = {
    "spark.driver.extraJavaOptions": f"{QUICK_JVM} -XX:+UseSerialGC",
    "spark.driver.extraClassPath": QUICK_PATH,
    **QUICK_SQL,
}
"""The settings for short sessions, in which compiling and planning do not pay off."""

QUICKLY = [f"--spark-conf={name}={value}" for name, value in QUICK_START.items()]
"""The same for a job that is a process."""

_TIMEOUT_S = 900
"""Jobs of Spark take minutes on a busy machine, and the first test begins with its start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeout of the tests of this folder, unless they set their own."""
    for item in items:
        if item.path.parent == _FOLDER and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def azure() -> ReservedPort:
    """Return the address of the tests' server of Azure's blobs, if it runs."""
    return ReservedPort()


@pytest.fixture(scope="session")
def s3() -> ObjectStore:
    """Return the tests' S3 server, if it runs."""
    return ObjectStore()


@pytest.fixture(scope="session")
def google_account(
    tmp_path_factory: pytest.TempPathFactory, azure: ReservedPort, s3: ObjectStore
) -> Iterator[Path]:
    """Set how this process and Spark's workers reach object stores; return Google's file."""
    path = tmp_path_factory.mktemp("google") / "account.json"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        patch.setenv("GOOGLE_SERVICE_ACCOUNT", str(path))
        patch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        patch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://{azure.address}")
        yield path


@pytest.fixture(scope="session")
def spark(google_account: Path) -> Iterator[SparkSession]:  # noqa: ARG001 - workers inherit it
    """Return the session that all tests share."""
    forking = {"spark.python.daemon.module": "tests.support.spark_daemon"}
    with spark_session("local[2]", {**QUICK_START, **forking}) as session:
        yield session


@pytest.fixture(scope="session")
def filled_database(postgres: PostgresServer, template_database: str) -> str:
    """Return the name of a database with the messages of `world`, to be copied."""
    name = postgres.copy_store(template_database)
    asyncio.run(write(postgres.url(name), [admitted(batch) for batch in batches()]))
    return name


@pytest.fixture
def url(postgres: PostgresServer, filled_database: str) -> Iterator[str]:
    """Return the URL of a database of the test's own, with the messages of `world`."""
    name = postgres.create_database(filled_database)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def archived(
    spark: SparkSession,
    postgres: PostgresServer,
    filled_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Create an archive of these messages, to be copied or only read."""
    path = tmp_path_factory.mktemp("archive") / "lake"
    name = postgres.create_database(filled_database)
    archive(spark, ArchiveJob(postgres.url(name), DeltaArchive(str(path))))
    postgres.drop_database(name)
    return path


@pytest.fixture
def lake_path(archived: Path, tmp_path: Path) -> Path:
    """Create a copy of that archive, of the test's own."""
    return Path(shutil.copytree(archived, tmp_path / "lake"))
