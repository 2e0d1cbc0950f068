"""Files as workers write them: every row once, in its directory, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.pipeline import files
from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.parquet import WRITTEN, batches_of, write_batches

NAMES = ("ts", "payload", "meta", "parents")
Row = dict[str, Any]


def row(number: int, day: int, shard: int) -> Row:
    parents = [{"id": f"p{each}", "hint": None} for each in range(number % 3)]
    words = {f"h{word}": number + word for word in range(4)}
    return {
        **dict.fromkeys(ARROW.names),
        **words,
        "day": day,
        "shard": shard,
        "ts": number,
        "hash": bytes(32),
        "pubsub_topic": "/waku/2/rs/1/0",
        "content_topic": "c",
        "payload": bytes([number % 256]) * number,
        "parents": None if number % 5 else parents,
    }


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, ARROW)


@pytest.fixture
def rows() -> list[Row]:
    made = [row(number, 20_000 + number % 4, number % 7 - 1) for number in range(200)]
    return sorted(made, key=lambda each: (each["day"], each["shard"], each["ts"]))


def written(folder: Path, rows: list[Row], size: int) -> list[Row]:
    batches = (batch(rows[start : start + size]) for start in range(0, len(rows), size))
    made = [each for found in write_batches(str(folder), ARROW, PARTITIONS, batches) for each in
            found.cast(WRITTEN).to_pylist()]  # fmt: skip
    for each in made:
        assert pq.read_metadata(folder / each["path"]).num_rows == each["rows"]
    return made


def by_time(found: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
    return sorted(found, key=lambda each: int(each[1]["ts"]))


def test_every_row_is_in_the_file_of_its_directory_and_on_the_disk(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[Path, int] = {}
    monkeypatch.setattr(files, "_sync", lambda place: synced.update({place: place.stat().st_size}))
    made = written(tmp_path / "messages", rows, 33)
    assert len(made) == 28
    found = [
        (str(Path(each["path"]).parent), row)
        for each in made
        for part in batches_of(f"{tmp_path}/messages/{each['path']}", NAMES)
        for row in part.to_pylist()
    ]
    days = {20_000 + number: f"2024-10-0{4 + number}" for number in range(4)}
    assert by_time(found) == by_time(
        [
            (f"day={days[each['day']]}/shard={each['shard']}", {name: each[name] for name in NAMES})
            for each in rows
        ]
    )
    for each in made:
        file = tmp_path / "messages" / each["path"]
        assert synced[file] == file.stat().st_size == each["size_bytes"]
        assert set(file.parents[:3]) <= synced.keys()


def test_only_row_groups_that_may_hold_a_time_are_read(tmp_path: Path, rows: list[Row]) -> None:
    same = sorted(({**each, "day": 20_000, "shard": 0} for each in rows), key=lambda e: e["ts"])
    (file,) = written(tmp_path, same, 20)
    path = tmp_path / file["path"]
    assert pq.read_metadata(path).num_row_groups == 10, "a batch is a row group"
    start = pq.read_metadata(path).row_group(9).column(0).file_offset
    data = bytearray(path.read_bytes())
    data[start : start + 400] = b"\0" * 400
    path.write_bytes(data)
    found = [ts for part in batches_of(str(path), ["ts"], 45, 61) for ts in part["ts"].to_pylist()]
    assert found == list(range(45, 61))
