"""Input of `publish`: read as it comes, so that a slow writer's lines are not held back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from storenode.cli.client.limits import (
    MAX_INPUT_LINE_BYTES,
    MAX_INPUT_PAYLOAD_BYTES,
    MAX_WAITING_CHUNKS,
    READ_CHUNK_BYTES,
)
from storenode.cli.errors import FAILED, USAGE, CliError

STANDARD_INPUT = Path("-")


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
        if len(data) > MAX_INPUT_PAYLOAD_BYTES:
            raise CliError(
                FAILED,
                f"The payload has more than {MAX_INPUT_PAYLOAD_BYTES} bytes, which no node takes.",
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
        if len(rest) > MAX_INPUT_LINE_BYTES:
            raise CliError(
                FAILED, f"A line of the input has more than {MAX_INPUT_LINE_BYTES} bytes."
            )
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
