"""What a nightly audit costs: of everything, and of what a day brought.

``python -m bench.audit_again --messages 1000000``: SDS messages of 30 days in channels of 600. Then
a day brings one message to every hundredth channel. Processor time of driver, JVM and workers; all
audits but the first run in a session that is warm, and their results are compared.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.pipeline.cpu import measured
from bench.support import report
from store.pipeline.columns import ARROW
from store.pipeline.jobs.audit import Auditing, audit
from store.pipeline.lake import Lake, Written
from store.pipeline.limits import DAY_NS
from store.pipeline.session import spark_session
from store.pipeline.sides import LakeSide
from store.pipeline.writing import day_text, write_batches

DEPTH: Final = 600
DAYS: Final = 30
FEW: Final = 100
"""A day brings messages to one channel in so many."""

_FIRST_DAY: Final = 20_000
_PER_DAY: Final = DEPTH // DAYS
_SEED: Final = 11

Numbers = NDArray[np.int64]


def main() -> None:
    """Write the archive, and audit."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.audit_again")
    parser.add_argument("--messages", type=int, default=200_000, help="default: %(default)s")
    channels = np.arange(max(1, parser.parse_args().messages // DEPTH))
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name, spark_session() as session:
        lake = Lake(str(Path(name, "archive"))).create()
        for day in range(DAYS):
            levels = np.arange(day * _PER_DAY, (day + 1) * _PER_DAY)
            _publish(lake, *np.meshgrid(levels, channels, indexing="ij"))

        def taken(what: str, *, full: bool, record: bool) -> object:
            job = Auditing(LakeSide(session, lake), record=lake if record else None, full=full)
            found, used = measured(lambda: audit(session, job))
            report(
                benchmark="audit_again",
                measure=what,
                messages=found.counts["messages"],
                cpu_s=used.cpu_s,
                wall_s=used.wall_s,
            )
            return found.as_json()

        taken("the first audit, recorded", full=False, record=True)
        some = channels[::FEW]
        _publish(lake, np.full(some.shape, DEPTH), some)
        again = taken("after another day, recorded", full=False, record=True)
        assert again == taken("everything once more", full=True, record=False)
        taken("nothing has changed", full=False, record=True)


def _publish(lake: Lake, level: Numbers, channel: Numbers) -> None:
    """Publish a message of each level in each channel; its parent is the one before it, and every
    fiftieth channel lacks one.
    """
    level, channel = level.ravel(), channel.ravel()
    there = (level != DEPTH // 2) | (channel % 50 != 0)
    rows = _rows(level[there], channel[there])
    run = f"run-{int(level[0]):08}"
    folder = Path(lake.path, "messages", run)
    written = []
    for batch in write_batches(f"file://{folder}", iter([rows])):
        for path, count in zip(batch["path"].to_pylist(), batch["rows"].to_pylist(), strict=True):
            ts = pq.ParquetFile(folder / path).read(columns=["ts"])["ts"].to_numpy()
            size, day = (folder / path).stat().st_size, day_text(int(ts[0]) // DAY_NS)
            low, high = int(ts.min()), int(ts.max())
            written.append(Written(f"{run}/{path}", day, 0, size, count, low, high))
    lake.publish(written, {})


def _rows(level: Numbers, channel: Numbers) -> pa.RecordBatch:
    count = len(level)
    words = np.random.default_rng([_SEED, int(level[0])]).integers(-(2**63), 2**63 - 1, (count, 4))
    ts = (_FIRST_DAY * DAY_NS + level * (DAY_NS // _PER_DAY) + channel).astype(np.int64)
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
