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
            return _checked(path, path.read_text(encoding="ascii").strip())
        node_id = secrets.token_hex(16)
        write_private(path, f"{node_id}\n")
    except OSError as error:
        raise WrongConfigurationError(
            f"{path} cannot be used ({error.strerror}): let this user read and write it."
        ) from error
    return node_id


def _checked(path: Path, text: str) -> str:
    if not _NODE_ID.fullmatch(text):
        raise WrongConfigurationError(
            f"{path} does not hold a node ID of 32 hexadecimal digits: restore it, or remove it"
            " to get a new one."
        )
    return text


MAX_FILE_BYTES: Final = 512


class SeenFiles:
    """Implements `store.db.primary.Memory`."""

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
