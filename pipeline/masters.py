"""Which Spark runs a job: this machine's, a cluster's, or one behind a Spark Connect server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyspark

from pipeline.errors import USAGE, PipelineError
from pipeline.java import require_java

SCHEME: Final = "sc://"
"""How the address of a Spark Connect server begins."""

_DEFAULT_PORT: Final = 15_002
_TIMEOUT_S: Final = 20
_VARIABLE: Final = "SPARK_REMOTE"
_SHELL: Final = "pyspark-shell"


def remote_url(master: str | None) -> str | None:
    """The address of the Spark Connect server that a job is to be run by; None: by none.

    ``master`` None: that of Spark's own variable ``SPARK_REMOTE``, if it is set.
    """
    chosen = os.environ.get(_VARIABLE) if master is None else master
    return chosen if chosen is not None and chosen.startswith(SCHEME) else None


def require_spark(master: str | None) -> None:
    """Make sure, before anything starts, that there is what a job needs to be run.

    Raises:
        PipelineError: there is no Java runtime, the environment names a Spark that is not the one
            of PySpark, or nobody listens where the Spark Connect server should be.
    """
    url = remote_url(master)
    if url is None:
        require_java()
        _require_environment()
    else:
        _require_server(url)


def _require_environment() -> None:
    """PySpark itself would start the wrong Spark, or wait for ever for one that has ended."""
    home = os.environ.get("SPARK_HOME")
    if home is not None and (found := _spark_in(Path(home))) != pyspark.__version__:
        raise PipelineError(
            f"SPARK_HOME names {home}, which holds {f'Spark {found}' if found else 'no Spark'}, and"
            f" PySpark here is {pyspark.__version__}: unset it, or let it name the same version.",
            USAGE,
        )
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS")
    if arguments is not None and arguments.split()[-1:] != [_SHELL]:
        raise PipelineError(
            f"PYSPARK_SUBMIT_ARGS must end with {_SHELL}, and is {arguments!r}: unset it, or append"
            " that.",
            USAGE,
        )


def _spark_in(home: Path) -> str | None:
    """The version of Spark in a directory."""
    for jar in home.glob("jars/spark-core_*.jar"):
        return jar.stem.rpartition("-")[2]
    return None


def _require_server(url: str) -> None:
    """The client itself would try for minutes."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        host = None
    if not host:
        raise PipelineError(
            f"{url} is no address of a Spark Connect server: it is {SCHEME}HOST:PORT.", USAGE
        )
    try:
        with socket.create_connection((host, port), _TIMEOUT_S):
            pass
    except OSError as error:
        raise PipelineError(
            f"The Spark Connect server {host}:{port} could not be reached"
            f" ({error.strerror or error}): check that it runs, and the address."
        ) from error
