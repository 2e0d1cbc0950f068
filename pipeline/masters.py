"""Which Spark runs a job: this machine's, a cluster's, or one behind a Spark Connect server."""

from __future__ import annotations

import os
import socket
from typing import Final
from urllib.parse import urlsplit

from pipeline.errors import USAGE, PipelineError
from pipeline.java import require_java

SCHEME: Final = "sc://"
"""How the address of a Spark Connect server begins."""

_DEFAULT_PORT: Final = 15_002
_TIMEOUT_S: Final = 20
_VARIABLE: Final = "SPARK_REMOTE"


def remote_url(master: str | None) -> str | None:
    """The address of the Spark Connect server that a job is to be run by; None: by none.

    ``master`` None: that of Spark's own variable ``SPARK_REMOTE``, if it is set.
    """
    chosen = os.environ.get(_VARIABLE) if master is None else master
    return chosen if chosen is not None and chosen.startswith(SCHEME) else None


def require_spark(master: str | None) -> None:
    """Make sure, before anything starts, that there is what a job needs to be run.

    Raises:
        PipelineError: there is no Java runtime, or nobody listens where the Spark Connect server
            should be.
    """
    url = remote_url(master)
    if url is None:
        require_java()
    else:
        _require_server(url)


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
