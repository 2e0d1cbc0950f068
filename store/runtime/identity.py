"""Who this node is: the name that it keeps in its data directory, or that of its certificate."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Final

from store.runtime.errors import WrongConfigurationError

NODE_ID_FILE: Final = "node-id"
_NODE_ID = re.compile(r"[0-9a-f]{32}")


def kept_node_id(data_dir: Path) -> str:
    """The random node ID of a data directory, made at the first use: 32 hexadecimal digits.

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


def write_private(path: Path, text: str) -> None:
    """Replace a file durably: after a crash it is the old one or the new one, and complete."""
    fd, name = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
