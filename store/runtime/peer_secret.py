"""The secret that peers without TLS share: a file, read when the node starts."""

from __future__ import annotations

import stat
import time
from pathlib import Path

from store.rpc.secret import MAX_SECRET_BYTES, MIN_SECRET_BYTES, PeerSecret
from store.runtime.errors import WrongConfigurationError


def read_peer_secret(path: Path | None) -> PeerSecret | None:
    """The content of the file, without white space around it; None where there is no file.

    Raises:
        WrongConfigurationError: It cannot be read, everybody can read it, or it is no secret.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            secret = file.read(MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise WrongConfigurationError(
            f"The secret of peers in {path} cannot be read ({error.strerror}): name a readable"
            " file with --peer-secret-file."
        ) from error
    if mode & stat.S_IROTH:
        raise WrongConfigurationError(
            f"The secret of peers in {path} can be read by everybody (mode {mode:04o}): run"
            f" `chmod 600 {path}`, and make a new one."
        )
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise WrongConfigurationError(
            f"The secret of peers in {path} must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES:,}"
            " bytes: make one with `openssl rand -hex 32`."
        )
    return PeerSecret(secret, time.time_ns)
