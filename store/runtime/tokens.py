"""The token file: read at the start, and again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from store.domain.access import Access, TokenFileError, parse_token_file
from store.domain.quota import ClientLimits
from store.observe.logging import get_logger
from store.runtime.node_files import WrongConfigurationError, ended

_LOG = get_logger("store.runtime.tokens")

TOKEN_REST_S: Final = 1.0
TOKEN_REST_LOOKS: Final = 3
"""A changed token file is taken over when it has been left alone for so long; after so many looks
in any case."""

TOKEN_READINGS: Final = 8
TOKEN_READ_AGAIN_S: Final = 0.02
"""How often a file that does not come to rest is read, and the pause between."""

MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024

_Stamp = tuple[int, int, int, int]
_UNSURE: Final[_Stamp] = (0, 0, 0, 0)
"""Of no file: what was read may have changed since, within one tick of the file system's clock."""


@dataclass(frozen=True, slots=True)
class _Reading:
    access: Access
    digest: bytes


class TokenFile:
    """``access``: the rules as the file last had them; one that cannot be used changes nothing.

    A file that is being written may lack clients, or all of them, for a moment. So a change is
    taken over when the file has come to rest. If it does not, it is read several times, and of
    these readings one with the most clients is taken: a cut file has no more than a whole one.
    """

    def __init__(
        self,
        path: Path | None,
        limits: ClientLimits,
        on_use: Callable[[bool], None] = lambda _usable: None,
    ) -> None:
        """Make the rules of a file that is not read yet.

        Args:
            path: The file; None: any client may do everything but administer.
            limits: Those of a client for which the file sets none.
            on_use: Called with whether the file could be used, when it was read again.
        """
        self._path = path
        self._limits = limits
        self._on_use = on_use
        self._stamp: _Stamp | None = _UNSURE
        self._digest = b""
        self.access = Access.open(limits)
        self._loads = 0
        self._complaint = ""

    def load(self) -> None:
        """Read the file as it is now.

        Raises:
            WrongConfigurationError: It cannot be read or understood.
        """
        if self._path is not None:
            self._take(_read(self._path, self._limits))
            self._loads += 1
            self._stamp = _UNSURE

    def reload(self) -> None:
        """Read the file as it is now, and complain if it cannot be used."""
        if self._path is None:
            return
        try:
            self.load()
        except WrongConfigurationError as error:
            _LOG.error("token_file_not_reloaded", reason=str(error))
            self._on_use(False)
        else:
            self._on_use(True)
            _LOG.info("token_file_reloaded", clients=len(self.access.clients()))

    async def follow(self) -> None:
        """Take over a changed file; complain about one that cannot be used, once per change."""
        if self._path is None:
            return
        stamp = _look(self._path)
        if stamp == self._stamp:
            return
        for _ in range(TOKEN_REST_LOOKS):
            await asyncio.sleep(TOKEN_REST_S)
            before, stamp = stamp, _look(self._path)
            if stamp == before:
                await self._take_over(self._path, stamp, 1)
                return
        await self._take_over(self._path, _UNSURE, TOKEN_READINGS)

    async def _take_over(self, path: Path, stamp: _Stamp | None, readings: int) -> None:
        loads, found, complaint = self._loads, None, ""
        for number in range(readings):
            await asyncio.sleep(TOKEN_READ_AGAIN_S if number else 0)
            try:
                reading = await asyncio.to_thread(_read, path, self._limits)
            except WrongConfigurationError as error:
                complaint = str(error)
            else:
                if found is None or _clients(reading) >= _clients(found):
                    found = reading
        if loads != self._loads:
            return  # read at once meanwhile, and looked at again
        self._stamp = stamp
        self._on_use(found is not None)
        if found is not None:
            self._complaint = ""
            if found.digest != self._digest:
                self._take(found)
                _LOG.info("token_file_reloaded", clients=_clients(found))
        elif stamp != _UNSURE or complaint != self._complaint:
            self._complaint = complaint
            _LOG.error("token_file_not_reloaded", reason=complaint)

    def _take(self, reading: _Reading) -> None:
        self.access, self._digest = reading.access, reading.digest


def _clients(reading: _Reading) -> int:
    return len(reading.access.clients())


def _look(path: Path) -> _Stamp | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


def _read(path: Path, limits: ClientLimits) -> _Reading:
    """Read the file.

    Raises:
        WrongConfigurationError: It cannot be read or understood.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKEN_FILE_BYTES + 1)
        if len(data) > MAX_TOKEN_FILE_BYTES:
            raise TokenFileError(f"it has more than {MAX_TOKEN_FILE_BYTES} bytes")
        return _Reading(parse_token_file(data.decode(), limits), sha256(data).digest())
    except OSError as error:
        raise WrongConfigurationError(
            f"The token file {path} cannot be read ({error.strerror}): name a readable file with "
            "--client-token-file."
        ) from error
    except (TokenFileError, UnicodeDecodeError) as error:
        raise WrongConfigurationError(
            ended(f"The token file {path} cannot be used: {error}")
        ) from error
