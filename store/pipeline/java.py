"""The Java runtime that Spark needs: found before anything starts, or asked for by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.limits import OLDEST_JAVA

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S: Final = 60
_REMEDY: Final = (
    f"install one, on Debian and Ubuntu with `apt install openjdk-{OLDEST_JAVA}-jre-headless`, on"
    f" macOS with `brew install openjdk@{OLDEST_JAVA}`, and let JAVA_HOME name it if it is not on"
    " the PATH."
)


def require_java() -> None:
    """Make sure that there is a Java runtime that Spark can use.

    Raises:
        PipelineError: there is none, it does not run, or it is older than `OLDEST_JAVA`.
    """
    program = _program()
    if program is None:
        home = os.environ.get("JAVA_HOME")
        found = f"JAVA_HOME names {home}, which has no bin/java" if home else "found none"
        raise PipelineError(
            f"The pipeline needs a Java runtime, version {OLDEST_JAVA} or newer, and {found}:"
            f" {_REMEDY}",
            USAGE,
        )
    version = _version(program)
    if version is None or version < OLDEST_JAVA:
        found = "is none that tells its version" if version is None else f"is version {version}"
        raise PipelineError(
            f"The pipeline needs a Java runtime, version {OLDEST_JAVA} or newer, and {program}"
            f" {found}: {_REMEDY}",
            USAGE,
        )


def _program() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java")


def _version(program: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the runtime that Spark itself would start
            [program, "-version"], capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr.decode(errors="replace"))
    return None if match is None else int(match[1])
