"""Messages that are there more than once, wherever they are, and however many tasks look."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.pipeline import repeated, tasks
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints
from store.pipeline.limits import HOUR_NS

Message = tuple[int, bytes, int]
SCHEMA = pa.schema([("ts", pa.int64()), ("hash", pa.binary()), ("h0", pa.int64())])


def session(parts: int) -> Any:  # noqa: ANN401 - what is asked of it is there
    """Of a session only what says how many tasks there should be."""
    return SimpleNamespace(conf={"spark.sql.shuffle.partitions": str(parts)})


def write(path: Path, messages: list[Message]) -> None:
    columns = [pa.array(each) for each in zip(*messages, strict=True)]
    pq.write_table(pa.table(columns, schema=SCHEMA), path, row_group_size=50)


@pytest.mark.parametrize("most", [1, 30, 1_000])
def test_every_repetition_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    for module in (repeated, tasks):
        monkeypatch.setattr(module, "MAX_PORTION_ROWS", most)
    monkeypatch.setattr(tasks, "MIN_PORTION_ROWS", 1)
    rng = random.Random(5)
    # Words and times that several messages share, and some messages that are there again.
    files: list[list[Message]] = [[], [], []]
    for number in range(400):
        one = rng.randrange(6 * HOUR_NS), rng.randbytes(3), rng.randrange(-60, 60)
        again = 1 if number % 10 else rng.randrange(1, 4)
        for _ in range(again):
            rng.choice(files).append(one)
    spans = []
    held: Fingerprints = {}
    for number, messages in enumerate(files):
        path = tmp_path / f"{number}.parquet"
        write(path, sorted(messages))
        hours = Counter(ts // HOUR_NS * HOUR_NS for ts, _, _ in messages)
        spans.append(repeated.Span(f"file://{path}", min(hours), max(hours)))
        for hour, count in hours.items():
            held[hour] = held.get(hour, NOTHING).joined(Fingerprint(count, 0, 0, 0, 0))
    looks = repeated._looks(session(2), held, spans)
    told = [row for look in looks for rows in repeated._found(look) for row in rows.to_pylist()]
    counts = Counter((ts, digest) for messages in files for ts, digest, _ in messages)
    wanted = {
        f"{digest.hex()} at {ts}: {count} times"
        for (ts, digest), count in counts.items()
        if count > 1
    }
    assert len(looks) >= 2
    assert sum(row["count"] for row in told) == len(wanted) > 20
    assert {text for row in told for text in row["where"]} == wanted
