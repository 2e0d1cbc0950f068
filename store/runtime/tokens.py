"""The token file: read at the start, and again when it changes."""

from __future__ import annotations

from pathlib import Path

from store.domain.access import Access, TokenFileError, parse_token_file
from store.domain.quota import ClientLimits
from store.observe.logging import get_logger
from store.runtime.errors import WrongConfigurationError, ended
from store.runtime.limits import MAX_TOKEN_FILE_BYTES

_LOG = get_logger("store.runtime.tokens")


class TokenFile:
    """The access rules as the file last had them; a file that cannot be used changes nothing."""

    def __init__(self, path: Path | None, limits: ClientLimits) -> None:
        """`limits` are those of a client for which the file sets none."""
        self._path = path
        self._limits = limits
        self._stamp: tuple[int, int, int] | None = None
        self._access = Access.open(limits)

    def load(self) -> None:
        """Read the file.

        Raises:
            WrongConfigurationError: It cannot be read or understood.
        """
        if self._path is None:
            return
        try:
            stamp = _look(self._path)
            self._access = parse_token_file(_read(self._path), self._limits)
        except OSError as error:
            raise WrongConfigurationError(
                f"The token file {self._path} cannot be read ({error.strerror}): name a readable"
                " file with --client-token-file."
            ) from error
        except (TokenFileError, UnicodeDecodeError) as error:
            raise WrongConfigurationError(
                ended(f"The token file {self._path} cannot be used: {error}")
            ) from error
        self._stamp = stamp

    def current(self) -> Access:
        """The rules in force."""
        return self._access

    def reload_if_changed(self, *, force: bool = False) -> None:
        """Take over a changed file; complain about one that cannot be used, once per change."""
        if self._path is None:
            return
        try:
            stamp = _look(self._path)
        except OSError:
            stamp = None
        if stamp == self._stamp and not force:
            return
        try:
            self.load()
        except WrongConfigurationError as error:
            _LOG.error("token_file_not_reloaded", reason=str(error))
            self._stamp = stamp
            return
        _LOG.info("token_file_reloaded", clients=len(self._access.clients()))


def _look(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size, about.st_ino


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_TOKEN_FILE_BYTES + 1)
    if len(data) > MAX_TOKEN_FILE_BYTES:
        raise TokenFileError(f"it has more than {MAX_TOKEN_FILE_BYTES} bytes")
    return data.decode()
