"""A server of Azure's blobs: Azurite, from npm, on a port of 127.0.0.1."""

from __future__ import annotations

import hmac
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final

from chaos.ports import ReservedPort

_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The key of every Azurite, which is public."""

_CONTAINER: Final = "archives"
URL: Final = f"abfss://{_CONTAINER}@{_ACCOUNT}.dfs.core.windows.net"
_VERSION: Final = "2021-08-06"
_START_S: Final = 60.0


@contextmanager
def running_azurite(program: str, folder: Path, port: ReservedPort) -> Iterator[None]:
    """Yield a server with its data in a folder, and a container."""
    command = [
        *(program, "--blobHost", "127.0.0.1", "--blobPort", str(port.number)),
        *("--location", str(folder), "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _make_container(port, server)
        yield
    finally:
        server.kill()
        server.wait()


def _make_container(port: ReservedPort, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(_signed(port)):
                return
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None, "Azurite has ended"
            assert time.monotonic() < until, "Azurite does not answer"
            time.sleep(0.05)


def _signed(port: ReservedPort) -> urllib.request.Request:
    """Return the request that makes the container, signed with the account's key."""
    date = formatdate(usegmt=True)
    named = f"x-ms-date:{date}\nx-ms-version:{_VERSION}"
    place = f"/{_ACCOUNT}/{_ACCOUNT}/{_CONTAINER}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{named}\n{place}"
    digest = hmac.digest(b64decode(_KEY), text.encode(), "sha256")
    return urllib.request.Request(
        f"http://{port.address}/{_ACCOUNT}/{_CONTAINER}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {_ACCOUNT}:{b64encode(digest).decode()}",
        },
    )
