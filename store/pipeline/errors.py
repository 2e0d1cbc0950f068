"""The errors that end a job: one sentence and an exit code."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError, EOFError)
"""The exceptions of Spark: errors with a class of their own, all others, and a JVM that is gone."""

FAILED: Final = 1
"""The job failed, or found a fault."""

USAGE: Final = 2
"""Wrong usage, or a path or file that is not what it should be."""

UNREACHABLE: Final = 3
"""The database could not be reached."""

_RAISED: Final = re.compile(r"pipeline\.errors\.PipelineError: (?P<code>\d) (?P<sentence>.*)")
_CALLING: Final = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")
_FULL: Final = "No space left on device"
_DETAILS: Final = re.compile(r"[:\s]+(?:0: |\w+ \{ ).*", re.DOTALL)
"""The backtrace of a library, or the dump of its data, behind what it says."""

_STORE_CAUSES: Final = (
    (
        re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE),
        "there is no such bucket: check the path, or make the bucket",
    ),
    (
        re.compile(
            r"AccessDeniedError|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|AuthenticationFail"
            r"|\b40[13]\b|Unauthorized|Forbidden|permission denied",
            re.IGNORECASE,
        ),
        "the store refuses these credentials: check them, and what they may do",
    ),
    (
        re.compile(r"169\.254\.|metadata\.google|credential|MetadataRequest", re.IGNORECASE),
        "no credentials were found (docs/pipeline-cluster.md lists where they are looked for)",
    ),
    (
        re.compile(r"sending request|connect|dns|timed? ?out", re.IGNORECASE),
        "it cannot be reached: check the network, and the endpoint if one is set",
    ),
)
"""The causes that the messages of object stores stand for; the first match counts."""


class StoreError(OSError):
    """The error of an object store about a path, with its cause as ``strerror``."""


def store_error(path: str, text: str) -> StoreError:
    """Return the error for an object store's message about a path."""
    cause = store_cause(text) or _in_one_line(text)
    return StoreError(errno.EIO, cause, path)


def store_cause(text: str) -> str | None:
    """Return the cause of an error of an object store, or of delta-rs on one; None: unknown."""
    return next((cause for words, cause in _STORE_CAUSES if words.search(text)), None)


def _known_cause(path: str, error: Exception) -> str | None:
    if isinstance(error, StoreError):
        return error.strerror
    return store_cause(str(error)) if "://" in path else None


class PipelineError(Exception):
    """An error that ends a job.

    The text begins with the exit code, so that it survives the way from a worker's traceback.
    """

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(f"{code} {sentence}")
        self.sentence = sentence
        self.code = code

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, int]]:
        """Return its parts, for processes that it is sent to."""
        return type(self), (self.sentence, self.code)


def of_database(error: psycopg.Error) -> PipelineError:
    """Return the error for one of Postgres."""
    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    text = message.splitlines()[0]
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return PipelineError(
            f"The database could not be reached ({text}): check that Postgres runs, and the URL.",
            UNREACHABLE,
        )
    return PipelineError(f"The database refused ({text}).")


def of_spark(error: Exception) -> PipelineError:
    """Return the error for one that came through Spark."""
    text = str(error)
    if raised := _RAISED.search(text):
        return PipelineError(raised["sentence"].strip(), int(raised["code"]))
    if _FULL in text:
        return PipelineError(
            "No space is left on a disk that the job writes to: that of its archive or output, or"
            " of Spark's temporary files (spark.local.dir). An archive is as it was: make room, and"
            " run it again."
        )
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError):
        return PipelineError("Spark's JVM has ended, perhaps for want of memory: run it again.")
    cause = _CALLING.sub("", text.partition("JVM stacktrace:")[0])
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    # A worker's traceback says last what was wrong, anything else says so first.
    first = lines[-1 if "Traceback" in text else 0] if lines else type(error).__name__
    return PipelineError(f"Spark gave up: {first[:500]}")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise the errors of Spark as those of a job."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def of_store(path: str, error: Exception, what: str = "archive") -> PipelineError:
    """Return the error for reading or writing an archive, or something in it."""
    cause = _known_cause(path, error) or _in_one_line(str(error))
    return PipelineError(f"The {what} in {path} cannot be read or written: {cause}.")


def of_file(path: str, error: Exception) -> PipelineError:
    """Return the error for reading a file of an archive."""
    cause = _known_cause(path, error) if isinstance(error, OSError) else None
    if cause is not None:
        return PipelineError(f"{path} could not be read: {cause}.")
    text = _in_one_line(str(error)) or type(error).__name__
    return PipelineError(
        f"{path} could not be read as a file of an archive: it is damaged, of another schema"
        f" or gone ({text})."
    )


def _in_one_line(text: str) -> str:
    return " ".join(_DETAILS.sub("", text).split())[:300]
