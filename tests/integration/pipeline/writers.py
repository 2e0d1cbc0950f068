"""Two jobs that write to one archive in an object store, of which the store refuses one."""

from __future__ import annotations

import pytest

from store.pipeline import delta
from store.pipeline.delta import CommitMetadata, DeltaArchive, read_manifest
from store.pipeline.errors import PipelineError


def refuse_one_of_two_writers(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both commit, then copy a commit; at last the store refuses nobody any more."""
    one, other = DeltaArchive(path).open_for_writing(), DeltaArchive(path).open_for_writing()
    (file, *_) = one.files()
    one.commit([], [file], CommitMetadata())
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        other.commit([], [file], CommitMetadata())
    ahead, behind = (read_manifest(f"{path}/manifest") for _ in range(2))
    ahead.append(b"{}")
    with pytest.raises(PipelineError, match="Another job has written to"):
        behind.append(b"[]")
    monkeypatch.setattr(delta, "create", lambda *_: None)
    with pytest.raises(PipelineError, match="does not support conditional writes"):
        DeltaArchive(path).open_for_writing()
