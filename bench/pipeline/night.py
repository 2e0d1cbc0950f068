"""A night of the pipeline, in the process that measures it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from bench.pipeline.cpu import measured
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import audit_recorded
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.spark import spark_session
from store.pipeline.verify import VerifyJob, verify

_KIBIBYTE: Final = 1024
_MEBIBYTE: Final = _KIBIBYTE**2


def night(url: str, path: str, cores: int) -> dict[str, dict[str, float]]:
    """Run the jobs in one session; return for each the seconds, and the greatest memory so far.

    ``driver_mib`` is the memory of this process, ``jvm_mib`` that of the JVM with its engine.
    """
    psutil.Process().cpu_affinity(list(range(cores)))  # The JVM and the workers inherit it.
    settings = {"spark.sql.shuffle.partitions": str(2 * cores)}
    found: dict[str, dict[str, float]] = {}
    with spark_session(f"local[{cores}]", settings) as session:
        opened = DeltaArchive(path)
        jobs: dict[str, Callable[[], Any]] = {
            "archive": lambda: archive(session, ArchiveJob(url, opened)),
            "verify": lambda: verify(session, VerifyJob(opened, url)),
            "audit": lambda: audit_recorded(ArchiveMessages(session, opened)),
        }
        for name, job in jobs.items():
            result, used = measured(job)
            assert result.sound, result.lines()
            found[name] = {
                "cpu_s": used.cpu_s,
                "wall_s": used.wall_s,
                "driver_mib": _peak_kib() / _KIBIBYTE,
                "jvm_mib": _jvm_bytes() / _MEBIBYTE,
            }
    return found


def _peak_kib() -> int:
    """Return the greatest memory of this process; that of `getrusage` may be its parent's."""
    (line,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(line)


def _jvm_bytes() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(each.memory_info().rss for each in children if each.name() == "java")
