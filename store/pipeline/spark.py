"""Spark of a job: what it needs, its start, its progress and its end."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.limits import ARROW_BATCH_BYTES, ARROW_BATCH_ROWS, OLDEST_JAVA
from store.pipeline.source import StorenodeSource

TERMINATED: Final = 143
"""Exit code after SIGTERM, as shells have it: 128 and the number of the signal."""

_SENDING: Final = "KeyboardInterrupt while sending command."


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a block as Ctrl-C does, by an exception: temporary files are removed.

    It works only in the main thread. What it interrupts may fail in a way of its own.
    """
    came = list[int]()

    def terminate(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise TerminatedError

    before, interrupt = signal.signal(signal.SIGTERM, terminate), signal.getsignal(signal.SIGINT)
    logging.getLogger().addFilter(_is_relevant)
    try:
        yield
    except Exception as error:
        if came:
            raise TerminatedError from error
        raise
    finally:
        logging.getLogger().removeFilter(_is_relevant)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def interrupt_here() -> None:
    """Let Ctrl-C be an exception and nothing else, also after Spark was started.

    The handler of PySpark calls the JVM first, on the connection that waits for its answer.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the report of py4j that it was waiting when the exception came."""
    return record.msg != _SENDING


PROGRESS: Final = logging.getLogger("storenode.pipeline")
"""The log of a job's progress."""


@contextmanager
def logged(what: str, messages: int = 0) -> Iterator[None]:
    """Log that ``what`` begins, with about ``messages`` messages, and that it has ended.

    In between Spark itself shows its tasks, on a terminal.
    """
    started = time.monotonic()
    PROGRESS.info("%s: begins%s", what, f", {messages:,} messages" if messages else "")
    yield
    seconds = time.monotonic() - started
    rate = f", {messages / seconds:,.0f} messages/s" if messages and seconds else ""
    PROGRESS.info("%s: done in %.1f s%s", what, seconds, rate)


LOCAL: Final = "local[*]"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_JAVA_TIMEOUT_S: Final = 60
_REMEDY: Final = (
    f"install one, on Debian and Ubuntu with `apt install openjdk-{OLDEST_JAVA}-jre-headless`, on"
    f" macOS with `brew install openjdk@{OLDEST_JAVA}`, and let JAVA_HOME name it if it is not on"
    " the PATH."
)

_JAVA_FLAGS: Final = (
    # Below it a start collects all of the heap four times, to no end.
    "-XX:MetaspaceSize=128m",
    # Batches come from our own workers: to check every access to them costs a quarter of it.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    # What looks like a password or a URL is kept out of plans and logs.
    "spark.sql.redaction.options.regex": "(?i)url|password",
    "spark.sql.adaptive.enabled": "true",
    # Spark takes what workers make for as small as the numbers of their tasks: only what it has
    # counted, or what is named as small, may go through the driver to all executors.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
}
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_STRAY: Final = re.compile(rb"WARNING: Using incubator modules: [^\n]*\n")
"""The lines that a JVM prints about options with which Spark itself starts it."""

_STDERR: Final = 2
_LAST_WORDS_S: Final = 10.0

_STARTED_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.defaultJavaOptions": " ".join(
        (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *_JAVA_FLAGS)
    ),
    # A job needs throughput; G1 takes more processor time for shorter pauses.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
"""Settings of a driver that is started here, and not by spark-submit."""

_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # No network is between tasks, and IDs and hashes shrink by a third at most.
    "spark.shuffle.compress": "false",
}


@contextmanager
def spark_session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    has_progress_bar: bool = False,
) -> Iterator[SparkSession]:
    """Open a session with the data source `storenode`, and stop it unless it was there before.

    ``master`` None: that of a program which is run by spark-submit, else all cores of this machine.
    ``settings`` win over those of the pipeline.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield prepared(active)
        return
    progress = {"spark.ui.showConsoleProgress": str(has_progress_bar).lower()}
    session = _start(master, {**progress, **(settings or {})})
    try:
        yield prepared(session)
    finally:
        # Where Spark has died, the job knows it already.
        with suppress(*SPARK_ERRORS, OSError):
            session.stop()


def prepared(session: SparkSession) -> SparkSession:
    """Register the data source in a session."""
    session.dataSource.register(StorenodeSource)
    return session


def _start(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    _choose_python(master)
    builder = SparkSession.builder
    # Those of spark.executor.extraJavaOptions come after the default ones, and win.
    executors = {"spark.executor.defaultJavaOptions": " ".join(_JAVA_FLAGS)}
    given = {"spark.app.name": "storenode pipeline", **SETTINGS, **executors, **settings}
    if master is not None or not _submitted():
        chosen = master or LOCAL
        local = _LOCAL_SETTINGS if chosen.startswith("local") else {}
        given = {**_STARTED_SETTINGS, **local, **given, "spark.master": chosen}
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
    """Start a JVM, which a session then uses; standard output is for the result of a job."""
    conf = SparkConf(loadDefaults=False).setAll([*settings.items()])
    read, write = os.pipe()
    relay = threading.Thread(target=_relay, args=(read,), name="spark-stderr", daemon=True)
    relay.start()
    try:
        streams = {"stdout": write, "stderr": write}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    except Exception:
        os.close(write)
        relay.join(_LAST_WORDS_S)  # the JVM's reason comes before our sentence
        raise
    os.close(write)
    SparkContext(conf=conf, gateway=gateway)


def _relay(source: int) -> None:
    """Copy the output of a JVM to standard error as it comes, without stray lines."""
    with os.fdopen(source, "rb", buffering=0) as output:
        while data := output.read(65_536):
            os.write(_STDERR, _STRAY.sub(b"", data))


def _not_started(error: Exception) -> PipelineError:
    """Return the sentence for a Spark that does not start."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return PipelineError(
            "Spark's JVM has ended at its start: it says above why; settings come from"
            " --spark-conf, JDK_JAVA_OPTIONS and JAVA_TOOL_OPTIONS."
        )
    if "stopped SparkContext" in str(error):
        return PipelineError(
            "The Spark master did not take the job within a minute: check that it runs, and the"
            " address; it must have the same version of Spark, and the same"
            " spark.authenticate.secret if there is one."
        )
    return of_spark(error)


def _choose_python(master: str | None) -> None:
    """Set the interpreter of the workers to one with the pipeline; locally it is this one."""
    here = (master or LOCAL).startswith("local") and not _submitted()
    if here or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _submitted() -> bool:
    """Return True if spark-submit runs this program, and chooses where and how."""
    return "SPARK_ENV_LOADED" in os.environ


def require_java() -> None:
    """Raise unless there is a Java runtime that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if program is None:
        fault = f"JAVA_HOME names {home}, which has no bin/java" if home else "found none"
    else:
        version = _java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return
        found = "is none that tells its version" if version is None else f"is version {version}"
        fault = f"{program} {found}"
    raise PipelineError(
        f"The pipeline needs a Java runtime, version {OLDEST_JAVA} or newer, and {fault}:"
        f" {_REMEDY}",
        USAGE,
    )


def _java_version(program: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the runtime that Spark itself would start
            [program, "-version"], capture_output=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr.decode(errors="replace"))
    return None if match is None else int(match[1])
