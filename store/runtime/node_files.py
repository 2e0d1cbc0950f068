"""The small files of a data directory: the node's ID, and the history of its database.

    seen-<store ID>.json    {"system": "7311...", "timeline": 2, "position": 1234, "token": 567}

``system`` is Postgres's system identifier; position and token name a commit of the store.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from pathlib import Path
from typing import Final
from uuid import UUID

from store.db.primary import SeenState
from store.embedded.process import write_private
from store.runtime.errors import WrongConfigurationError

NODE_ID_FILE: Final = "node-id"
_NODE_ID = re.compile(r"[0-9a-f]{32}")


def kept_node_id(data_dir: Path) -> str:
    """Return the random node ID of a data directory, made at the first use.

    Raises:
        WrongConfigurationError: The file cannot be read or written, or holds something else.
    """
    path = data_dir / NODE_ID_FILE
    try:
        with contextlib.suppress(FileNotFoundError):
            kept = path.read_text(encoding="ascii", errors="replace").strip()
            if _NODE_ID.fullmatch(kept):
                return kept
            raise WrongConfigurationError(
                f"{path} does not hold a node ID of 32 hexadecimal digits: restore it, or remove it"
                " to get a new one."
            )
        node_id = secrets.token_hex(16)
        write_private(path, f"{node_id}\n")
    except OSError as error:
        raise WrongConfigurationError(
            f"{path} cannot be used ({error.strerror}): let this user read and write it."
        ) from error
    return node_id


MAX_FILE_BYTES: Final = 512
_FIELDS: Final = ("system", "timeline", "position", "token")


class SeenFiles:
    """The memory of a `store.db.primary.PrimaryGuard`, by store."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def load(self, store_id: bytes) -> SeenState | None:
        """Return what was saved of a store.

        Raises:
            WrongConfigurationError: The file cannot be read, or holds something else.
        """
        path = self._path(store_id)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
            if len(text) > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            fields = json.loads(text)
            system, timeline, position, token = numbers = [int(fields[name]) for name in _FIELDS]
            if min(numbers) < 0:
                raise ValueError("a negative number")
            return SeenState(store_id, system, timeline, (position, token))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WrongConfigurationError(
                f"{path} does not say what this node has seen of its database ({error}): restore"
                " it, or run `storenode db accept` if the database is the right one."
            ) from error

    def save(self, seen: SeenState) -> None:
        """Replace what was saved of its store, durably."""
        values = str(seen.system), seen.timeline, *seen.place
        fields = dict(zip(_FIELDS, values, strict=True))
        write_private(self._path(seen.store_id), json.dumps(fields) + "\n")

    def _path(self, store_id: bytes) -> Path:
        return self._data_dir / f"seen-{UUID(bytes=store_id)}.json"
