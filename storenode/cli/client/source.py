"""Input of `publish`: read as it comes, so that a slow writer's lines are not held back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from storenode.cli.client.text import note
from storenode.cli.errors import FAILED, USAGE, CliError

MAX_LINE_BYTES: Final = 1024 * 1024
"""The size limit of a line of input; hexadecimal JSON of 150 KiB takes less than half of it."""

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""A payload read as a whole; the largest request that a node accepts."""

READ_CHUNK_BYTES: Final = 64 * 1024


def open_input(path: Path | None) -> int:
    """Return the file descriptor of a file, or of standard input for ``None`` and `-`.

    Raises:
        CliError: The file cannot be opened.
    """
    if path is None or path == Path("-"):
        return 0
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CliError(
            USAGE, f"The file {path} of --file cannot be opened ({error.strerror})."
        ) from error


async def whole(fd: int) -> bytes:
    """Read the whole input, which is announced on a terminal.

    Raises:
        CliError: It cannot be read, is empty, or is larger than any request.
    """
    if os.isatty(fd):
        note("The payload is what you type now: end it by Ctrl-D.")
    data = bytearray()
    async for chunk in _chunks(fd):
        data += chunk
        if len(data) > MAX_PAYLOAD_BYTES:
            raise CliError(
                FAILED, f"The payload has more than {MAX_PAYLOAD_BYTES} bytes, which no node takes."
            )
    if not data:
        raise CliError(
            USAGE, "The input is empty: to publish an empty message, give '' as the payload."
        )
    return bytes(data)


async def lines(fd: int) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of the input without their line feeds, as many together as arrived together.

    Raises:
        CliError: It cannot be read, or a line is too long.
    """
    rest = b""
    async for chunk in _chunks(fd):
        *whole_lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise CliError(FAILED, f"A line of the input has more than {MAX_LINE_BYTES} bytes.")
        if whole_lines:
            yield whole_lines
    if rest:
        yield [rest]


async def _chunks(fd: int) -> AsyncGenerator[bytes, None]:
    while True:
        found: Future[bytes] = Future()
        # A daemon: Ctrl-C must end the command although a read of the terminal cannot be cancelled.
        threading.Thread(target=_read, args=(fd, found), name="input", daemon=True).start()
        try:
            chunk = await asyncio.wrap_future(found)
        except OSError as error:
            raise CliError(FAILED, f"The input cannot be read ({error.strerror}).") from error
        if not chunk:
            return
        yield chunk


def _read(fd: int, found: Future[bytes]) -> None:
    # What is read after the end of the command is for nobody.
    if not found.set_running_or_notify_cancel():
        return
    try:
        found.set_result(os.read(fd, READ_CHUNK_BYTES))
    except OSError as error:
        found.set_exception(error)
