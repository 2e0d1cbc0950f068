"""Tables beside the messages that no job can make again: claims of the past, and what was audited.

They are only added to. Where the log of one is lost, a new one over its files would hide them.
"""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from store.pipeline.errors import PipelineError, of_store
from store.pipeline.lake import Lake
from store.pipeline.storage import delta_options, listed

AUDITS_TABLE: Final = "audits"
CLAIMS_TABLE: Final = "claims"


def place_of(lake: Lake, name: str) -> tuple[str, dict[str, str] | None]:
    """Where a table is, and what delta-rs needs besides."""
    return f"{lake.path}/{name}", delta_options(lake.path)


def is_begun(lake: Lake, name: str) -> bool:
    """Whether there is such a table.

    Raises:
        PipelineError: it cannot be looked at, or there are files of one that has lost its log.
    """
    return bool(_stored(lake, name))


def _stored(lake: Lake, name: str) -> set[str]:
    """The files of a table and of its log; none where there is no table."""
    path, _ = place_of(lake, name)
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


def damage(lake: Lake) -> list[str]:
    """What is wrong with these tables, in a sentence each."""
    found = []
    for name in (AUDITS_TABLE, CLAIMS_TABLE):
        path, options = place_of(lake, name)
        try:
            here = _stored(lake, name)
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
