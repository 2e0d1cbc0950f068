"""The jobs' side of each measure: Spark as `storenode pipeline` starts it, in a process of its own.

What is counted is the driver with its JVM and the Python workers. Postgres belongs to another
process, on both sides. A session has started when it has answered one query about nothing, of the
kind that is measured, by workers that have loaded what they need: the baseline's libraries are
loaded before its clock starts, too. That start is stated apart. The first run of a job is what
counts, which plans and compiles what it runs; ``again`` is the same once more in the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.pipeline.cpu import Used, measured
from bench.pipeline.same import read_again
from store.pipeline.causal.audited import audited, missing_parents
from store.pipeline.causal.claims import Claims
from store.pipeline.causal.gone_through import LOOKED_FOR
from store.pipeline.causal.rows import CLAIMS, INCOMPLETE
from store.pipeline.checking import WRONG_HASH
from store.pipeline.columns import NAMES
from store.pipeline.contents import fingerprints_of, read_files
from store.pipeline.jobs.archive import Archiving, archive
from store.pipeline.jobs.verify import Verifying, file_checks, verify
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import HOUR_NS
from store.pipeline.session import spark_session
from store.pipeline.sides import DatabaseSide

T = TypeVar("T")

Within = tuple[int, int]
"""A range of time in nanoseconds, the end exclusive."""

_NEVER: Final = (0, 1)
_CALLED: Final = 2


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
    nothing: Callable[[SparkSession], object] | None = None,
) -> Ran[T]:
    """Run a job; ``nothing`` is a query about nothing, if calling workers is not enough."""
    with ExitStack() as stack:

        def begin() -> SparkSession:
            session = stack.enter_context(spark_session(master))
            rows = session.range(0, _CALLED, 1, _CALLED).mapInArrow(_called, "id long")
            assert rows.count() == _CALLED
            if nothing is not None:
                nothing(session)
            return session

        session, start = measured(begin)
        answer, first = measured(lambda: work(session))
        second = measured(lambda: work(session))[1] if again else None
        return Ran(answer, first, second, start)


def _called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each worker loads what jobs need, by importing this module, and makes an array."""
    for batch in batches:
        yield pa.record_batch([pa.array(batch["id"].to_pylist())], names=["id"])


def read_rows(url: str, within: Within, names: tuple[str, ...] = NAMES) -> Ran[None]:
    """Read the messages of a range of time, and do nothing with them."""

    def read(session: SparkSession, low_ns: int, high_ns: int) -> None:
        rows = DatabaseSide(session, url, "The database").messages(names, low_ns, high_ns)
        rows.write.format("noop").mode("overwrite").save()

    return _run(
        lambda session: read(session, *within), nothing=lambda session: read(session, *_NEVER)
    )


def read_same(path: Path, names: tuple[str, ...], messages: int) -> Ran[None]:
    """What Spark itself takes for as many rows, which cost nothing to read."""
    return _run(
        lambda session: read_again(session, path, names, messages),
        nothing=lambda session: read_again(session, path, names, 1),
    )


def archive_all(url: str, path: Path, within: Within, master: str | None = None) -> Ran[int]:
    """Archive the messages of a range of time; how many."""

    def work(session: SparkSession) -> int:
        return archive(session, Archiving(url, Lake(str(path)), *within)).published

    return _run(work, again=False, master=master)


def fingerprints(files: list[LakeFile]) -> Ran[list[tuple[int, ...]]]:
    """(start of the hour, messages, XOR as four words), ascending."""

    def work(session: SparkSession) -> list[tuple[int, ...]]:
        found = fingerprints_of(session, files, HOUR_NS)
        return [(start, *each) for start, each in sorted(found.items())]

    return _run(work)


def wrong_hashes(files: list[LakeFile]) -> Ran[int]:
    """The number of messages whose hash is another."""

    def work(session: SparkSession) -> int:
        faults = file_checks(session, files, [WRONG_HASH])
        return sum(row["count"] for row in faults if row["kind"] == WRONG_HASH)

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
    """All that an audit looks for, on so many cores; how many findings."""

    def work(session: SparkSession) -> int:
        return audited(_claims(session, files), LOOKED_FOR).count()

    return _run(work, again=False, master=master)


def _claims(session: SparkSession, files: list[str]) -> Claims:
    held = [_as_of_a_lake(Path(path)) for path in files]
    return Claims(read_files(session, held, CLAIMS), held)


def _as_of_a_lake(path: Path) -> LakeFile:
    return LakeFile(f"file://{path}", 0, 0, path.stat().st_size, pq.read_metadata(path).num_rows)


def files_of(path: Path) -> list[LakeFile]:
    """The files of an archive."""
    return Lake(str(path)).open().files()
