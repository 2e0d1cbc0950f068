"""Files of an archive where delta-rs opens them, as on an object store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.pipeline import storage
from store.pipeline.errors import PipelineError
from store.pipeline.files import batches_of, rows_and_bytes


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A directory that delta-rs knows as a store."""
    monkeypatch.setattr(storage, "_LOCAL", "no scheme")
    return f"file://{tmp_path}/a b"


def test_what_is_written_is_read(elsewhere: str, tmp_path: Path) -> None:
    path = f"{elsewhere}/day=1/part-ж.parquet"
    table = pa.table({"ts": range(1_000), "h0": range(1_000)})
    with storage.for_writing(path) as sink:
        pq.write_table(table, sink)
    (file,) = tmp_path.glob("a b/day=1/*")
    assert rows_and_bytes(path) == (1_000, file.stat().st_size)
    (batch,) = batches_of(path, ["h0", "ts"])
    assert batch.to_pydict() == {"h0": list(range(1_000)), "ts": list(range(1_000))}


def test_what_is_not_there_is_named(elsewhere: str) -> None:
    with pytest.raises(PipelineError, match=r"none.parquet could not be read as a file of an arch"):
        list(batches_of(f"{elsewhere}/none.parquet", ["ts"]))
