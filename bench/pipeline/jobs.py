"""The jobs' side of each measure: Spark as `storenode pipeline` starts it, in a process of its own.

What is counted is the driver with its JVM and the Python workers. Postgres belongs to another
process, on both sides. The session is started before and stated apart. The first run in a session
compiles what it runs, and that counts; ``again`` is the same once more in the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from bench.pipeline.cpu import Used, measured
from pipeline.causal.audited import audited, missing_parents
from pipeline.causal.rows import (
    BLOCK,
    CLAIMED,
    CLAIMS,
    CYCLE,
    HEAD,
    INCOMPLETE,
    MISSING,
    ORPHAN,
    VIOLATION,
)
from pipeline.columns import NAMES
from pipeline.contents import fingerprints_of, read_files
from pipeline.jobs.archive import Archiving, archive
from pipeline.jobs.verify import WRONG_HASH, Verifying, row_faults, verify
from pipeline.lake import Lake
from pipeline.limits import HOUR_NS
from pipeline.session import spark_session
from pipeline.source import FORMAT, read_options

T = TypeVar("T")

_KINDS: Final = frozenset({BLOCK, MISSING, INCOMPLETE, HEAD, VIOLATION, ORPHAN, CLAIMED, CYCLE})
HASHED: Final = ("ts", "hash", "pubsub_topic", "content_topic", "payload", "meta")


@dataclass(frozen=True, slots=True)
class Ran(Generic[T]):
    """What a job answered and used, in its first run and in the next; and the session's start."""

    answer: T
    first: Used
    again: Used | None
    session: Used


def _run(
    work: Callable[[SparkSession], T],
    *,
    again: bool = True,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Ran[T]:
    with ExitStack() as stack:
        session, start = measured(lambda: stack.enter_context(spark_session(master, settings)))
        answer, first = measured(lambda: work(session))
        second = measured(lambda: work(session))[1] if again else None
        return Ran(answer, first, second, start)


def read_rows(url: str, names: tuple[str, ...] = NAMES) -> Ran[None]:
    """Read all messages, and do nothing with them."""
    options = read_options(url, columns=",".join(names))

    def work(session: SparkSession) -> None:
        rows = session.read.format(FORMAT).options(**options).load()
        rows.write.format("noop").mode("overwrite").save()

    return _run(work)


def archive_all(url: str, path: Path, master: str | None = None) -> Ran[int]:
    """Archive all messages; how many."""

    def work(session: SparkSession) -> int:
        return archive(session, Archiving(url, Lake(str(path)))).published

    return _run(work, again=False, master=master)


def fingerprints(files: list[str]) -> Ran[list[tuple[int, ...]]]:
    """(start of the hour, messages, XOR as four words), ascending."""

    def work(session: SparkSession) -> list[tuple[int, ...]]:
        found = fingerprints_of(session, files, HOUR_NS)
        return [(start, *each) for start, each in sorted(found.items())]

    return _run(work)


def wrong_hashes(files: list[str]) -> Ran[int]:
    """The number of messages whose hash is another."""

    def work(session: SparkSession) -> int:
        return read_files(session, files, HASHED).where(row_faults()[WRONG_HASH]).count()

    return _run(work)


def missing(files: list[str]) -> Ran[int]:
    """The number of references to a parent that is not there."""
    return _run(lambda session: missing_parents(_claims(session, files)).count())


def incomplete(files: list[str]) -> Ran[int]:
    """The number of messages whose causal past is incomplete."""

    def work(session: SparkSession) -> int:
        return audited(_claims(session, files), frozenset({INCOMPLETE})).count()

    return _run(work)


def verify_all(path: Path, master: str) -> Ran[bool]:
    """Verify an archive on so many cores."""
    return _run(
        lambda session: verify(session, Verifying(Lake(str(path)))).sound,
        again=False,
        master=master,
    )


def audit_all(files: list[str], master: str) -> Ran[int]:
    """All that an audit finds, on so many cores; how many findings."""

    def work(session: SparkSession) -> int:
        return audited(_claims(session, files), _KINDS).count()

    return _run(work, again=False, master=master)


def _claims(session: SparkSession, files: list[str]) -> DataFrame:
    return read_files(session, files, CLAIMS)


def files_of(path: Path) -> list[str]:
    """The files of an archive."""
    return [each.path for each in Lake(str(path)).open().files()]
