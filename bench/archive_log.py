"""What the log of an archive with many files costs a job's driver: processor time and memory of
each operation, on a log that names files which are not there.

``python -m bench.archive_log --files 200000`` is eight years of 64 shards. Each operation is shown
with its processor time and the memory of the process after it. ``a batch of --follow`` is what each
batch does with the log: it reads on, looks for days that are not known, publishes, and looks again.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psutil

from bench.pipeline.cpu import apart
from bench.support import report
from store.pipeline import lake as lakes
from store.pipeline.actions import Written
from store.pipeline.fingerprints import Fingerprint, Fingerprints
from store.pipeline.lake import Lake
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.manifest import Entry, FileNote, Manifest, manifest_of
from store.pipeline.recording import unsaid

SHARDS: Final = 64
_ROWS: Final = 5_000
_BYTES: Final = 1_000_000
_COMMITS: Final = 20
_FIRST: Final = date(2020, 1, 1)
_MIB: Final = 1024 * 1024


def main() -> None:
    """Make a log, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.archive_log")
    parser.add_argument("--files", type=int, default=20_000, help="default: %(default)s")
    files = parser.parse_args().files
    # The files of a synthetic log are not there.
    with (
        tempfile.TemporaryDirectory(prefix="storenode-bench-") as name,
        patch.object(lakes, "require_visible"),
    ):
        path = str(Path(name, "archive"))
        lake = Lake(path).create()
        step = max(1, files // _COMMITS)
        manifest = manifest_of(path)
        for start in range(0, files, step):
            written = [_written(each) for each in range(start, min(files, start + step))]
            lake.publish(written, {})
            for low in range(0, len(written), SHARDS):
                some = written[low : low + SHARDS]
                added = {each.path: _noted(each) for each in some}
                manifest.append(Entry(lake.version, added, [], _hours(some[0])))
        apart(_measure, path, files)


@patch.object(lakes, "require_visible")
def _measure(path: str, files: int, _: object) -> None:
    """In a process of its own, since memory that was used once is not given back."""
    lake = Lake(path)

    def batch(number: int) -> None:
        lake.renew()
        assert lake.unknown_days({}) == sorted(lake.digests())
        lake.files({max(lake.digests())})
        lake.publish([_written(number)], {})
        assert lake.listing.messages >= files * _ROWS

    _shown("open", files, lake.open)
    _shown("digests of all days", files, lake.digests)
    _shown("files to be made one", files, lake.crowded)
    for number in range(files, files + 3):
        _shown("a batch of --follow", files, partial(batch, number))
    _shown("vacuum", files, lake.vacuum)
    read: list[Manifest] = []
    _shown("the manifest", files, lambda: read.append(manifest_of(lake.path)))
    _shown("what it does not say", files, lambda: unsaid(read[0], lake, read[0].hours))
    _shown("what was added to it", files, lambda: manifest_of(lake.path, read[0]))
    _shown("all files as objects", files, lake.files)


def _shown(what: str, files: int, work: Callable[[], Any]) -> None:
    process, before, began = psutil.Process(), _cpu_s(), time.monotonic()
    work()
    report(
        benchmark="archive_log",
        measure=what,
        files=files,
        cpu_s=_cpu_s() - before,
        wall_s=time.monotonic() - began,
        memory_mib=process.memory_info().rss / _MIB,
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _noted(file: Written) -> FileNote:
    digest = sha256(file.path.encode()).hexdigest()
    return FileNote(file.min_ts // DAY_NS, file.rows, digest)


def _hours(file: Written) -> Fingerprints:
    starts = range(file.min_ts, file.max_ts, HOUR_NS)
    return {start: Fingerprint(_ROWS, start, 1, 2, 3) for start in starts}


def _written(number: int) -> Written:
    day, shard = divmod(number, SHARDS)
    text = (_FIRST + timedelta(days=day)).isoformat()
    start = ((_FIRST - date(1970, 1, 1)).days + day) * DAY_NS
    path = f"run-{number // 5_000:032x}/day={text}/shard={shard}/part-{number:032x}.parquet"
    return Written(path, text, shard, _BYTES, _ROWS, start, start + DAY_NS - 1)


if __name__ == "__main__":
    main()
