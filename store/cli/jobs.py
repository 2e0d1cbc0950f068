"""Common parts of the commands of `storenode pipeline`: options, Spark, database, exit codes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from store.cli.db import Target, on_database
from storenode.cli.client.text import TIME, note
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.options.layers import option, with_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from store.pipeline.delta import DeltaArchive
    from store.pipeline.message_sets import MessageSet
    from store.pipeline.reports import JobReport

MOST_CONNECTIONS: Final = 64
FOREVER: Final = 2**63 - 1
NEW_FILE: Final = click.Path(path_type=Path)
PROGRESS: Final = logging.getLogger("storenode.pipeline")
"""The log of a job's progress."""

_JOB_OPTIONS: Final = with_options(
    option(
        "--master",
        metavar="URL",
        help="Spark master, such as spark://HOST:7077; without it all cores of this machine.",
    ),
    option(
        "--connections",
        type=click.IntRange(1, MOST_CONNECTIONS),
        default=8,
        show_default=True,
        help="Tasks that may use the database at a time.",
    ),
    option(
        "--spark-conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark, repeatable."
    ),
    option("--quiet", is_flag=True, help="Show no progress on standard error."),
    option(
        "--metrics-file",
        metavar="FILE",
        type=NEW_FILE,
        help="Write how the job went to FILE, in Prometheus's text format, as the textfile"
        " collector of the node exporter reads it.",
    ),
)
_RANGE_OPTIONS: Final = with_options(
    option("--from", "since", type=TIME, help="Start of the time range: RFC 3339, or nanoseconds."),
    option("--to", "until", type=TIME, help="End of the time range, exclusive."),
)


@dataclass
class Runner:
    """The Spark, the database and the output of a command; ``settings`` are Spark's."""

    target: Target
    master: str | None
    connections: int
    settings: dict[str, str]
    quiet: bool
    report_json: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Open a Spark session for the length of a block."""
        from store.pipeline import spark  # noqa: PLC0415

        spark.require_java()
        PROGRESS.info("Spark starts")
        has_bar = not self.quiet and sys.stderr.isatty()
        with spark.spark_session(self.master, self.settings, has_progress_bar=has_bar) as session:
            spark.interrupt_here()
            yield session

    @contextmanager
    def url(self) -> Iterator[str]:
        """Return the URL of the database, which serves and has the right schema."""
        from store.pipeline.database import connected  # noqa: PLC0415

        with self.target.url() as url:
            with connected(url):
                pass
            yield url

    def archive(self, path: str) -> DeltaArchive:
        """Return an archive, which is there."""
        from store.pipeline.delta import DeltaArchive  # noqa: PLC0415

        return DeltaArchive(path).open()

    @contextmanager
    def messages(self, archive: str | None) -> Iterator[Callable[[SparkSession], MessageSet]]:
        """Return how to open an archive, which is there, or (None) the database, which serves."""
        from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages  # noqa: PLC0415

        if archive is not None:
            opened = self.archive(archive)
            yield lambda session: ArchiveMessages(session, opened)
            return
        with self.url() as url:
            yield lambda session: DatabaseMessages(session, url, self.connections)

    def finish(self, report: JobReport) -> int:
        """Print a report, and return the exit code."""
        self.report_json = report.as_json()
        self.target.print(self.report_json, report.lines())
        return OK if report.sound else FAILED


def job(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command that is passed a `Runner`, and whose errors become exit codes."""

    def run(
        target: Target,
        *,
        master: str | None,
        connections: int,
        spark_conf: tuple[str, ...],
        quiet: bool,
        metrics_file: Path | None,
        **options: Any,  # noqa: ANN401
    ) -> int:
        try:
            from store.pipeline.errors import PipelineError  # noqa: PLC0415
            from store.pipeline.reports import require_metrics_file, write_metrics  # noqa: PLC0415
            from store.pipeline.spark import TERMINATED, TerminatedError, ended_by_signals  # noqa: PLC0415
        except ImportError as error:
            raise CliError(
                USAGE,
                f"The pipeline needs {error.name}, which is not installed: install storenode with"
                " the extra `pipeline`, as with `pip install 'storenode[pipeline]'`.",
            ) from error

        settings = dict(_setting(each) for each in spark_conf)
        runner = Runner(target, master, connections, settings, quiet)
        code, began_s, metrics = FAILED, time.time(), None
        shown = logging.StreamHandler()
        PROGRESS.addHandler(shown)
        PROGRESS.setLevel(logging.WARNING if quiet else logging.INFO)
        try:
            if metrics_file is not None:
                require_metrics_file(metrics_file)
                metrics = metrics_file
            with ended_by_signals():
                code = command(runner, **options)
        except TerminatedError:
            return TERMINATED
        except (CliError, PipelineError) as error:
            code = error.code
            raise CliError(code, error.sentence) from error
        finally:
            PROGRESS.removeHandler(shown)
            if metrics is not None:
                ran = {"began_s": began_s, "ended_s": time.time()}
                try:
                    write_metrics(metrics, command.__name__, code, runner.report_json, **ran)
                except OSError as error:
                    note(f"The metrics could not be written to {metrics} ({error.strerror}).")
        return code

    return _JOB_OPTIONS(on_database(update_wrapper(run, command)))


def between(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command that is passed a range of time."""

    def run(*, since: int | None, until: int | None, **options: Any) -> int:  # noqa: ANN401
        low, high = 0 if since is None else since, FOREVER if until is None else until
        if not 0 <= low < high:
            raise CliError(USAGE, "--from must be before --to, and neither before 1970.")
        return command(low_ns=low, high_ns=high, **options)

    return _RANGE_OPTIONS(update_wrapper(run, command))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise CliError(USAGE, "--spark-conf must be NAME=VALUE, such as spark.driver.memory=4g.")
    return name.strip(), value.strip()
