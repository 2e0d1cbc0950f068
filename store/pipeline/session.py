"""The Spark session of a job: of a Spark that is started here, or behind a Spark Connect server.

What differs between the two is here and in `store.pipeline.progress`; jobs know nothing of it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.limits import ARROW_BATCH_BYTES
from store.pipeline.masters import remote_url, require_spark
from store.pipeline.source import StorenodeSource

LOCAL: Final = "local[*]"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # A failed static overwrite leaves an empty table.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Of rows that go to workers: ten thousand is also the number of messages of 100 kB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.filterPushdown": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    # What looks like a password or a URL is kept out of plans and logs.
    "spark.sql.redaction.options.regex": "(?i)url|password",
    "spark.sql.adaptive.enabled": "true",
    # Spark takes what workers make for as small as the numbers of their tasks: only what it has
    # counted, or what is named as small, may go through the driver to all executors.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
}
_JAVA_FLAGS: Final = (
    # Below it a start collects all of the heap four times, to no end.
    "-XX:MetaspaceSize=128m",
    # Batches come from our own workers: to check every access to them costs a quarter of it.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
    # Most of what a job does with a message is done by workers, so little of the JVM's code is ever
    # worth the second compiler, which took more processor time than all else in jobs of minutes.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=10000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Of every JVM, that of the driver and, on a cluster, those of the executors."""

_WORKERS: Final[Mapping[str, str]] = {
    # What a worker has freed it will need again for the next batch: to hand it back to the system
    # each time took a third of what workers spend in the system. More than 32 MB, and older
    # versions of glibc refuse the first and keep the second. Source: mallopt(3).
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
    # Options of spark.executor.extraJavaOptions come after these, and win.
    "spark.executor.defaultJavaOptions": " ".join(_JAVA_FLAGS),
}
"""The environment of workers, which only who starts Spark can choose."""

_HADOOP: Final = "spark.hadoop."
"""What a session calls without this is called with it where Spark is started."""

LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DRIVER_FLAGS: Final = (f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *_JAVA_FLAGS)
_COLLECTOR: Final = "-XX:+UseParallelGC"
"""A job wants throughput; G1 takes more processor time for pauses that nobody minds here."""

_STRAY: Final = re.compile(rb"WARNING: Using incubator modules: ")
"""What a JVM says by itself of options that Spark starts it with, and that nobody need know."""

_STDERR: Final = 2
_LAST_WORDS_S: Final = 10.0

_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # No network is between tasks, and IDs and hashes shrink by a third at most.
    "spark.shuffle.compress": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with the data source `storenode`, stopped at the end unless it was there before.

    ``master`` None: that of a program which is run by spark-submit, the Spark Connect server that
    ``SPARK_REMOTE`` names, else all cores of this machine. ``settings`` win over those of the
    pipeline.

    Raises:
        PipelineError: there is no Java runtime, Spark does not start, or the Spark Connect server
            cannot be reached or is of another version.
    """
    remote = remote_url(master)
    active = None if remote else SparkSession.getActiveSession()
    if active is not None:
        yield prepared(active)
        return
    require_spark(master)
    session = _start(master, settings or {}) if remote is None else _connect(remote, settings or {})
    try:
        yield prepared(session)
    finally:
        # Where Spark has died, the job knows it already.
        with suppress(*SPARK_ERRORS, OSError):
            session.stop()


def prepared(session: SparkSession) -> SparkSession:
    """Make a session know the data source, and hand filters to it."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(StorenodeSource)
    return session


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of a server, whose own settings were made when it was started."""
    given = {**{name.removeprefix(_HADOOP): value for name, value in SETTINGS.items()}, **settings}
    try:
        session = SparkSession.builder.remote(url).getOrCreate()
        if session.version != pyspark.__version__:
            raise PipelineError(
                f"The Spark Connect server has version {session.version} of Spark, and PySpark here"
                f" is {pyspark.__version__}: install the same on both."
            )
        for name, value in given.items():
            session.conf.set(name, value)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    return session


def _start(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    _choose_python(master)
    builder = SparkSession.builder
    given = {"spark.app.name": "storenode pipeline", **SETTINGS, **_WORKERS, **settings}
    if master is not None or not _submitted():
        chosen = master or LOCAL
        if chosen.startswith("local"):
            given = {**_LOCAL_SETTINGS, **given}
        given[_JAVA_OPTIONS] = _java_options(given.get(_JAVA_OPTIONS, ""))
        given["spark.master"] = chosen
    for name, value in given.items():
        builder = builder.config(name, value)
    try:
        if getattr(SparkContext, "_gateway", None) is None and not _submitted():
            _launch(given)
        session = builder.getOrCreate()
    except Exception as error:
        raise _not_started(error) from error
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return session


def _launch(settings: Mapping[str, str]) -> None:
    """Begin with a JVM of which stray lines are not shown; a session is then one of its."""
    conf = SparkConf(loadDefaults=False).setAll([*settings.items()])
    read, write = os.pipe()
    relay = threading.Thread(target=_relay, args=(read,), name="spark-stderr", daemon=True)
    relay.start()
    try:
        # Standard output is for the result; a JVM that cannot start says why there.
        streams = {"stdout": write, "stderr": write}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    except Exception:
        os.close(write)
        relay.join(_LAST_WORDS_S)  # why it has not started is told before we say that it has not
        raise
    os.close(write)
    SparkContext(conf=conf, gateway=gateway)


def _relay(source: int) -> None:
    """Show what a JVM says, but for what is stray."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _STRAY.match(line):
                os.write(_STDERR, line)


def _not_started(error: Exception) -> PipelineError:
    """The sentence for a Spark that does not start, whose own says what it came to, not why."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return PipelineError(
            "Spark's JVM has ended at its start: it says above why; settings come from"
            " --spark-conf, JDK_JAVA_OPTIONS and JAVA_TOOL_OPTIONS."
        )
    if "stopped SparkContext" in str(error):
        return PipelineError(
            "The Spark master did not take the job within a minute: it must have the same version"
            " of Spark, and the same spark.authenticate.secret if there is one."
        )
    return of_spark(error)


def _choose_python(master: str | None) -> None:
    """Workers must be the interpreter that has the pipeline; on this machine that is this one."""
    here = (master or LOCAL).startswith("local") and not _submitted()
    if here or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _java_options(given: str) -> str:
    """Options of the driver's JVM, which refuses to start when two collectors are chosen."""
    elsewhere = (os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"))
    chosen = any(re.search(r"-XX:\+Use\w+GC", text) for text in (given, *elsewhere))
    return " ".join([*_DRIVER_FLAGS, *([] if chosen else [_COLLECTOR]), given]).strip()


def _submitted() -> bool:
    """Whether this program is run by spark-submit, which says where and how."""
    return "SPARK_ENV_LOADED" in os.environ
