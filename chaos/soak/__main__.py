"""Run three nodes under load and faults, and check that all rules hold; see docs/soak.md.

The exit code is 0 if they do, and 1 if a rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import SystemRandom

from chaos.soak.nemesis import FAULTS
from chaos.soak.run import Options, Soak
from storenode.cli.errors import mute_library

_MAX_MINUTES = 24 * 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"argument --json: {given.json.parent} is no directory")
    seed = SystemRandom().randrange(10**6) if given.seed is None else given.seed
    options = Options(
        given.minutes, given.every, seed, tuple(given.fault or FAULTS), 1.0 / given.rate
    )
    # Participants log every break that a fault causes.
    mute_library()
    # As Ctrl-C does: all processes are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="storenode-soak-"))
    _say(f"seed {seed}, in {directory}")
    kept = True
    try:
        summary = asyncio.run(Soak(options, directory, _say).run())
        kept = given.keep or bool(summary.violations)
        found = json.dumps(summary.as_json(), indent=2)
        _say(found)
        if given.json is not None:
            given.json.write_text(found + "\n")
        return int(bool(summary.violations))
    except KeyboardInterrupt:
        _say("interrupted")
        kept = given.keep
        return 130
    finally:
        if kept:
            _say(f"logs and data are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="make soak")
    parser.add_argument(
        "--minutes",
        type=_number(0.1, _MAX_MINUTES),
        default=20.0,
        help="length of the run; default: 20",
    )
    parser.add_argument(
        "--every",
        type=_number(5, 3_600),
        default=120.0,
        help="seconds from fault to fault; default: 120",
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=tuple(FAULTS),
        metavar="FAULT",
        help=f"only this kind; repeatable; default: all, {', '.join(FAULTS)}",
    )
    parser.add_argument(
        "--rate",
        type=_number(0.01, 100),
        default=2.0,
        help="batches a second of each of the nine publishers, of 1 to 10 messages; default: 2",
    )
    parser.add_argument("--seed", type=int, help="repeats the faults of a run; default: by chance")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there too")
    parser.add_argument("--keep", action="store_true", help="keep logs and data in any case")
    return parser


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return number


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
