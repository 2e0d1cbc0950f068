"""Two jobs that write to one archive in an object store, of which the store refuses one."""

from __future__ import annotations

import pytest

from store.pipeline import storage
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.manifest import Entry, manifest_of


def refuse_one_of_two_writers(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both change the files, then the manifest; at last the store refuses nobody any more."""
    one, other = DeltaArchive(path).open(), DeltaArchive(path).open()
    (file, *_) = one.files()
    one.replace([file], [])
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        other.replace([file], [])
    ahead, behind = manifest_of(path), manifest_of(path)
    entry = Entry(ahead.version, {}, [], {})
    ahead.append(entry)
    with pytest.raises(PipelineError, match="Another job has written to"):
        behind.append(entry)
    assert manifest_of(path).broken == []
    monkeypatch.setattr(storage, "create", lambda *_: None)
    with pytest.raises(PipelineError, match="does not support conditional writes"):
        DeltaArchive(path).open().begin_run()
