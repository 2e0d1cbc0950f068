"""The Postgres programs that the tests' own servers run.

Those that an embedded server runs, unless the environment variable `TEST_POSTGRES_BIN` names a
directory with others. Nodes that start a server of their own are not concerned.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from store.embedded import binaries

VARIABLE: Final = "TEST_POSTGRES_BIN"

_VERSION_TIMEOUT_S: Final = 60


def chosen() -> binaries.Installation:
    """Return the programs to run a new server with."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return binaries.choose(None)
    done = subprocess.run(
        [Path(directory, "postgres"), "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_VERSION_TIMEOUT_S,
    )
    return binaries.Installation(Path(directory), done.stdout.split()[2], movable=False)


@contextmanager
def in_use() -> Iterator[None]:
    """Let a server that starts within this block run the chosen programs."""
    installation = chosen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binaries, "choose", lambda _major: installation)
        yield
