"""Which Spark runs a job: this machine's, a cluster's, or one behind a Spark Connect server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyspark

from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.java import require_java

SCHEME: Final = "sc://"
"""How the address of a Spark Connect server begins."""

_CONNECT_PORT: Final = 15_002
_STANDALONE: Final = "spark://"
_MASTER_PORT: Final = 7077
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
            of PySpark, or nobody listens where the Spark Connect server or the master of a
            standalone cluster should be.
    """
    url = remote_url(master)
    if url is None:
        require_java()
        _require_environment()
        _require_master(master or "")
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


def _require_master(master: str) -> None:
    """Spark itself would try for a minute. Of several masters one must be there."""
    if not master.startswith(_STANDALONE):
        return
    addresses = master.removeprefix(_STANDALONE).split(",")
    said = [_unreachable(_STANDALONE + each, _MASTER_PORT, "a Spark master") for each in addresses]
    if all(said):
        raise PipelineError(f"The Spark master {said[0]}: check that it runs, and the address.")


def _require_server(url: str) -> None:
    """The client itself would try for minutes."""
    said = _unreachable(url, _CONNECT_PORT, "a Spark Connect server")
    if said:
        raise PipelineError(
            f"The Spark Connect server {said}: check that it runs, and the address."
        )


def _unreachable(url: str, default_port: int, what: str) -> str | None:
    """Why nobody can be reached at an address; None: somebody can.

    Raises:
        PipelineError: it is no address; ``what`` is it to be of.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host = None
    if not host:
        raise PipelineError(
            f"{url} is no address of {what}: it is {url.partition('://')[0]}://HOST:PORT.", USAGE
        )
    try:
        with socket.create_connection((host, port), _TIMEOUT_S):
            return None
    except OSError as error:
        return f"{host}:{port} could not be reached ({error.strerror or error})"
