"""Runs tests that start servers, and tries a few that failed once more, one at a time.

    python tools/run_server_tests.py ARGUMENT OF PYTEST...

Such tests depend on the order in which processes come to run. One that fails beside others and
passes alone has shown a race, its own or the product's. It is named at the end, for it is to be
mended. A test that fails twice, or more than `MOST_AGAIN` that fail, fail the run.

Exit codes are those of pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PASSED: Final = 0
FAILED: Final = 1

MOST_AGAIN: Final = 2
"""Failed tests that are tried again; more of them are no matter of chance."""

_ALONE: Final = ("--numprocesses", "0", "--last-failed", "--last-failed-no-failures", "none")


def run(arguments: Sequence[str]) -> int:
    """The exit code of pytest with these arguments, failures by chance aside."""
    with tempfile.TemporaryDirectory(prefix="storenode-tests-") as directory:
        # A memory of its own: what failed in an earlier run is not to be tried here.
        cache = ("--override-ini", f"cache_dir={directory}")
        code = _pytest([*arguments, *cache])
        failed = _failed(Path(directory))
        if code != FAILED or not 0 < len(failed) <= MOST_AGAIN:
            return code
        _say(f"{len(failed)} failed beside others, and are tried again alone.")
        code = _pytest([*arguments, *cache, *_ALONE])
    if code == PASSED:
        _say("NOT AT THE FIRST TRY: the order of events matters to these. Mend the race:", *failed)
    return code


def _pytest(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - a fixed command


def _say(*lines: str) -> None:
    sys.stdout.write("\n" + "".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _failed(cache: Path) -> list[str]:
    """What the last run noted as failed, in order."""
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_bytes()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
