"""Delta tables beside the messages that no job can compute again: claims and audits.

They are only appended to. A new log over the files of a lost one would hide them.
"""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.storage import delta_options, listed

AUDITS_TABLE: Final = "audits"
CLAIMS_TABLE: Final = "claims"


def location_of(archive: DeltaArchive, name: str) -> tuple[str, dict[str, str] | None]:
    """Return the path of a table, and the storage options for delta-rs."""
    return f"{archive.path}/{name}", delta_options(archive.path)


def is_begun(archive: DeltaArchive, name: str) -> bool:
    """Return True if there is such a table.

    Raises:
        PipelineError: it cannot be looked at, or there are files of one that has lost its log.
    """
    return bool(_stored(archive, name))


def _stored(archive: DeltaArchive, name: str) -> set[str]:
    """Return the files of a table and of its log; none where there is no table."""
    path, _ = location_of(archive, name)
    try:
        found = {each.path for each in listed(path)}
    except OSError as error:
        raise of_store(path, error, f"table of {name}") from error
    files = sum(each.endswith(".parquet") for each in found)
    if not any(each.startswith("_delta_log/") for each in found) and files:
        raise PipelineError(
            f"{path} holds {files:,} Parquet files, but the log that names them (_delta_log) is"
            " missing or damaged: put it back from a copy of the archive, or move the directory"
            " away, and the next job begins a new table."
        )
    return found


def damage(archive: DeltaArchive) -> list[str]:
    """Return a sentence for each thing that is wrong with these tables."""
    found = []
    for name in (AUDITS_TABLE, CLAIMS_TABLE):
        path, options = location_of(archive, name)
        try:
            here = _stored(archive, name)
            named = DeltaTable(path, storage_options=options).file_uris() if here else []
        except PipelineError as error:
            found.append(error.sentence)
        except (DeltaError, OSError, ValueError) as error:
            found.append(of_store(path, error, f"table of {name}").sentence)
        else:
            gone = sum(each.rsplit("/", 1)[-1] not in here for each in named)
            if gone:
                found.append(f"{path} lacks {gone:,} of the {len(named):,} files of its log")
    return found
