"""Input of `publish`: read as it comes, so that a slow writer's lines are not held back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Final

from storenode.cli.errors import FAILED, USAGE, CliError

MAX_LINE_BYTES: Final = 1024 * 1024
"""One line of input; a message of 150 KiB has less than half of it as hexadecimal JSON."""

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""A payload read as a whole; the largest request that a node accepts."""

READ_CHUNK_BYTES: Final = 64 * 1024
MAX_WAITING_CHUNKS: Final = 4
"""Chunks of input that are read ahead of the network."""

STANDARD_INPUT: Final = Path("-")


def open_input(path: Path | None) -> int:
    """Return the file descriptor of a file, or of standard input for ``None`` and `-`.

    Raises:
        CliError: The file cannot be opened.
    """
    if path is None or path == STANDARD_INPUT:
        return 0
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CliError(
            USAGE, f"The file {path} of --file cannot be opened ({error.strerror})."
        ) from error


async def whole(fd: int) -> bytes:
    """Read the whole input.

    Raises:
        CliError: It cannot be read, or is larger than any request.
    """
    data = bytearray()
    async for chunk in _chunks(fd):
        data += chunk
        if len(data) > MAX_PAYLOAD_BYTES:
            raise CliError(
                FAILED,
                f"The payload has more than {MAX_PAYLOAD_BYTES} bytes, which no node takes.",
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
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(MAX_WAITING_CHUNKS)
    loop = asyncio.get_running_loop()
    # A daemon: Ctrl-C must end the command although a read of the terminal cannot be cancelled.
    threading.Thread(target=_pump, args=(fd, loop, queue), daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise CliError(FAILED, f"The input cannot be read ({chunk.strerror}).") from chunk
        yield chunk


def _pump(fd: int, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | OSError]) -> None:
    # The loop is closed when the command has ended; then nobody wants the rest.
    with suppress(RuntimeError, asyncio.CancelledError):
        while chunk := _read(fd):
            _hand_over(chunk, loop, queue)
            if isinstance(chunk, OSError):
                return
        _hand_over(b"", loop, queue)


def _hand_over(
    chunk: bytes | OSError, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | OSError]
) -> None:
    put = queue.put(chunk)
    try:
        asyncio.run_coroutine_threadsafe(put, loop).result()
    finally:
        # Else a closed loop leaves it behind, and Python warns about that on standard error.
        put.close()


def _read(fd: int) -> bytes | OSError:
    try:
        return os.read(fd, READ_CHUNK_BYTES)
    except OSError as error:
        return error
