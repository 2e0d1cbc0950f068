"""What a nightly audit costs: of everything, and of what a day brought.

``python -m bench.audit_again --channels 200 --days 60 --per-day 50``: SDS messages of 60 days in
200 channels. Then a day brings as many to each channel. Processor time of driver, JVM and workers,
and what they read; all audits but the first run in a session that is warm, and their results are
compared.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray

from bench.pipeline.cpu import measured
from bench.pipeline.publishing import publish_rows
from bench.support import report
from store.pipeline.columns import ARROW
from store.pipeline.jobs.audit import Auditing, audit
from store.pipeline.lake import Lake
from store.pipeline.limits import DAY_NS
from store.pipeline.session import spark_session
from store.pipeline.sides import LakeSide

_FIRST_DAY: Final = 20_000
_SEED: Final = 11

Numbers = NDArray[np.int64]


def main() -> None:
    """Write the archive, and audit."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.audit_again")
    parser.add_argument("--channels", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--days", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--per-day", type=int, default=20, help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name, spark_session() as session:
        lake = Lake(str(Path(name, "archive"))).create()
        for day in range(args.days):
            _publish(lake, day, args.channels, args.per_day)

        def taken(what: str, *, full: bool, record: bool) -> object:
            job = Auditing(LakeSide(session, lake), record=lake if record else None, full=full)
            before = _read_bytes()
            found, used = measured(lambda: audit(session, job))
            report(
                benchmark="audit_again",
                measure=what,
                messages=found.counts["messages"],
                cpu_s=used.cpu_s,
                wall_s=used.wall_s,
                read_mib=(_read_bytes() - before) / 2**20,
            )
            return found.as_json()

        taken("the first audit, recorded", full=False, record=True)
        taken("nothing has changed", full=False, record=True)
        for day in (args.days, args.days + 1):
            _publish(lake, day, args.channels, args.per_day)
            again = taken("after another day, recorded", full=False, record=True)
            assert again == taken("everything once more", full=True, record=False)


def _read_bytes() -> int:
    """What this process and those that it started have read, of files and of each other."""
    root = psutil.Process()
    total = 0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.io_counters().read_chars
    return total


def _publish(lake: Lake, day: int, channels: int, per_day: int) -> None:
    """Publish a day: so many messages in each channel, each with the one before it as its parent,
    and every fiftieth channel lacks one of each tenth day.
    """
    levels = np.arange(day * per_day, (day + 1) * per_day)
    level, channel = (
        each.ravel() for each in np.meshgrid(levels, np.arange(channels), indexing="ij")
    )
    there = (level != day * per_day + per_day // 2) | (channel % 50 != 0) | (day % 10 != 0)
    publish_rows(lake, f"run-{day:08}", iter([_rows(level[there], channel[there], per_day)]))


def _rows(level: Numbers, channel: Numbers, per_day: int) -> pa.RecordBatch:
    count = len(level)
    words = np.random.default_rng([_SEED, int(level[0])]).integers(-(2**63), 2**63 - 1, (count, 4))
    ts = (_FIRST_DAY * DAY_NS + level * (DAY_NS // per_day) + channel).astype(np.int64)
    lists = np.minimum(np.arange(count + 1), np.concatenate([[0], np.cumsum(level > 0)]))
    named = level > 0
    parents = pa.StructArray.from_arrays(
        [_ids(level[named] - 1, channel[named]), pa.nulls(int(named.sum()), pa.binary())],
        fields=list(ARROW.field("parents").type.value_type),
    )
    topic = pa.repeat(pa.scalar("/waku/2/rs/1/0"), count)
    found = {
        "day": pa.array((ts // DAY_NS).astype(np.int32)).cast(pa.date32()),
        "shard": pa.array(np.zeros(count, np.int32)),
        "ts": pa.array(ts),
        "hash": pa.array([each.tobytes() for each in words], pa.binary()),
        **{f"h{place}": pa.array(words[:, place]) for place in range(4)},
        "pubsub_topic": topic,
        "content_topic": topic,
        "payload": pa.repeat(pa.scalar(b"said"), count),
        "channel": pa.array([f"channel-{each:06}" for each in channel.tolist()]),
        "message_id": _ids(level, channel),
        "sender": pa.repeat(pa.scalar("somebody"), count),
        "lamport": pa.array(level + 1),
        "parents": pa.ListArray.from_arrays(pa.array(lists.astype(np.int32)), parents),
    }
    columns = [found.get(each.name, pa.nulls(count, each.type)) for each in ARROW]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _ids(level: Numbers, channel: Numbers) -> pa.Array:
    pairs = zip(channel.tolist(), level.tolist(), strict=True)
    return pa.array([f"{one:016x}{other:016x}" for one, other in pairs], pa.string())


if __name__ == "__main__":
    main()
