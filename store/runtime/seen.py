"""What a node remembers of its database's history, in its data directory: one file per store.

    seen-<store ID>.json    {"system": "7311...", "timeline": 2, "position": 1234, "token": 567}

``system`` is Postgres's system identifier; position and token name a commit of the store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from uuid import UUID

from store.db.primary import SeenState
from store.runtime.errors import WrongConfigurationError
from store.runtime.identity import write_private

MAX_FILE_BYTES: Final = 512


class SeenFiles:
    """Implements `store.db.primary.Memory`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def load(self, store_id: bytes) -> SeenState | None:
        """What was saved of a store.

        Raises:
            WrongConfigurationError: The file cannot be read, or holds something else.
        """
        path = self._path(store_id)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
            return _parsed(store_id, text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WrongConfigurationError(
                f"{path} does not say what this node has seen of its database ({error}): restore"
                " it, or run `storenode db accept` if the database is the right one."
            ) from error

    def save(self, seen: SeenState) -> None:
        """Replace what was saved of its store, durably."""
        position, token = seen.place
        fields = {
            "system": str(seen.system),
            "timeline": seen.timeline,
            "position": position,
            "token": token,
        }
        write_private(self._path(seen.store_id), json.dumps(fields) + "\n")

    def _path(self, store_id: bytes) -> Path:
        return self._data_dir / f"seen-{UUID(bytes=store_id)}.json"


def _parsed(store_id: bytes, text: bytes) -> SeenState:
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    numbers = [int(fields[name]) for name in ("system", "timeline", "position", "token")]
    if min(numbers) < 0:
        raise ValueError("a negative number")
    system, timeline, position, token = numbers
    return SeenState(store_id, system, timeline, (position, token))
