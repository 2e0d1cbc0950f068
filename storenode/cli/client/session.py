"""The options of the connection of a client command, and the end of its call."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from storenode.cli.client.output import Output
from storenode.cli.client.text import TIME, TIME_FORMS, safe
from storenode.cli.errors import FAILED, OK, UNREACHABLE, USAGE, CliError
from storenode.cli.options.layers import option, with_options
from storenode.cli.options.types import Parsed
from storenode.client.node import NodeClient, connect
from storenode.common.errors import ArgumentError, StorenodeError
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import ClientOptionError, NodeError
from storenode.message.limits import HASH_BYTES
from storenode.message.text import parse_hex

DEFAULT_NODE = "127.0.0.1:7420"
DEFAULT_ADMIN = "127.0.0.1:7421"

MAX_TOKEN_FILE_BYTES: Final = 16 * 1024
MAX_PEM_FILE_BYTES: Final = 1024 * 1024
"""A token or PEM file; anything larger is a mistake."""

HEX = Parsed("hex", "HEX", parse_hex)


def parse_hash(text: str) -> bytes:
    """Parse the 64 hexadecimal digits of a message hash.

    Raises:
        ValueError: It holds something else, or has another length.
    """
    digest = parse_hex(text)
    if len(digest) != HASH_BYTES:
        raise ValueError(
            f"{text!r} has {2 * len(digest)} hexadecimal digits: write all {2 * HASH_BYTES} of the"
            " message hash, as `storenode query` prints them"
        )
    return digest


HASH = Parsed("hash", "HASH", parse_hash)
_HINTED = re.compile(rf"(.+)@((?:0x)?[0-9a-fA-F]{{{2 * HASH_BYTES}}})", re.DOTALL)

_CONNECTION = "Connection"
_FILTER = "Filter"
_OUTPUT = "Output"

Command = Callable[..., int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CommandSession:
    """A connected client and where its answers go."""

    client: NodeClient
    out: Output


Call = Callable[..., Awaitable[int]]


def connected(
    option_name: str = "--node",
    default: str = DEFAULT_NODE,
    *,
    interrupt_ends: bool = False,
    has_payloads: bool = False,
) -> Callable[[Call], Command]:
    """Make a command of a call: add the connection's options, run it, translate its errors.

    The call gets a `CommandSession` and the command's own options and returns the exit code. With
    ``interrupt_ends`` Ctrl-C is the usual way to end it, and a success. With ``has_payloads`` the
    output may be the bare payloads.
    """

    def decorate(call: Call) -> Command:
        @functools.wraps(call)
        def run(
            *,
            address: str,
            token: str | None,
            tls: TlsIdentity | None,
            shape: str,
            as_json: bool,
            **own: Any,  # noqa: ANN401 - the command's own options
        ) -> int:
            if shape == "raw" and sys.stdout.isatty():
                raise CliError(
                    USAGE,
                    "--output raw writes payloads as they are, which may control a terminal: "
                    "redirect the output.",
                )
            out = Output("json" if as_json else shape)

            async def session() -> int:
                async with connect(address, token=token, tls=tls) as client:
                    try:
                        return await call(CommandSession(client, out), **own)
                    finally:
                        out.finish()

            return _run(session(), interrupt_ends=interrupt_ends)

        return _connection_options(option_name, default, has_payloads=has_payloads)(run)

    return decorate


def _run(session: Coroutine[Any, Any, int], *, interrupt_ends: bool) -> int:
    try:
        return asyncio.run(interruptible(session))
    except StorenodeError as error:
        raise ended_by(error) from error
    except UnicodeEncodeError as error:
        raise CliError(
            USAGE, "An option holds bytes that are not UTF-8, which no field of a message takes."
        ) from error
    except BrokenPipeError:
        # Whoever reads has seen enough, which is no failure of ours.
        drop_output()
        return OK
    except (asyncio.CancelledError, KeyboardInterrupt):
        if interrupt_ends:
            return OK
        raise KeyboardInterrupt from None


async def interruptible(session: Coroutine[Any, Any, _T]) -> _T:
    """Run a session that Ctrl-C cancels.

    `asyncio.run` alone would not wake for a signal that comes just before its event loop sleeps.
    """
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError):  # on Windows; in a thread of an application
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await session


def ended_by(error: StorenodeError) -> CliError:
    """Return what ends a command that the library's error ends."""
    if isinstance(error, NodeError):
        return CliError(UNREACHABLE if error.unreachable else FAILED, safe(error.sentence))
    is_usage = isinstance(error, ClientOptionError | ArgumentError)
    return CliError(USAGE if is_usage else FAILED, safe(str(error)))


def drop_output() -> None:
    """Send what Python would still flush to standard output nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _read_token(path: Path | None) -> str | None:
    """Read the token of `--token-file`.

    Raises:
        CliError: The file cannot be read, or is none that holds a token.
    """
    if path is None:
        return None
    try:
        return _read(path, "--token-file", MAX_TOKEN_FILE_BYTES).decode().strip()
    except UnicodeDecodeError as error:
        raise CliError(USAGE, f"The file {path} of --token-file is not text.") from error


def _read_tls(ca: Path | None, cert: Path | None, key: Path | None) -> TlsIdentity | None:
    """Read the files of the TLS options; None without any.

    Raises:
        CliError: One cannot be read, or a key or certificate is alone.
    """
    if ca is None and cert is None and key is None:
        return None
    if (cert is None) != (key is None):
        raise CliError(USAGE, "--tls-cert and --tls-key go together: give both or neither.")
    return TlsIdentity(
        ca=_pem(ca, "--tls-ca"), cert=_pem(cert, "--tls-cert"), key=_pem(key, "--tls-key")
    )


def _pem(path: Path | None, flag: str) -> bytes | None:
    if path is None:
        return None
    text = _read(path, flag, MAX_PEM_FILE_BYTES)
    if b"-----BEGIN " not in text:
        raise CliError(USAGE, f"The file {path} of {flag} is not PEM: name one that is.")
    return text


def _read(path: Path, flag: str, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(limit_bytes + 1)
    except OSError as error:
        raise CliError(
            USAGE, f"The file {path} of {flag} cannot be read ({error.strerror})."
        ) from error
    if len(text) > limit_bytes:
        raise CliError(USAGE, f"The file {path} of {flag} has more than {limit_bytes} bytes.")
    return text


_FILE = click.Path(dir_okay=False, path_type=Path)

_credential_options = with_options(
    option(
        "--token-file",
        type=_FILE,
        metavar="FILE",
        section=_CONNECTION,
        help="File with this client's token; needs TLS beyond loopback.",
    ),
    option(
        "--tls-ca",
        type=_FILE,
        metavar="FILE",
        section=_CONNECTION,
        help="Connect with TLS and trust the certificate authorities in this PEM file.",
    ),
    option(
        "--tls-cert",
        type=_FILE,
        metavar="FILE",
        section=_CONNECTION,
        help="PEM file with this client's certificate, for a node that requires one.",
    ),
    option(
        "--tls-key",
        type=_FILE,
        metavar="FILE",
        section=_CONNECTION,
        help="PEM file with the key of that certificate.",
    ),
)


def with_credentials(function: Command) -> Command:
    """Add the options of who calls and how the connection is secured: ``token`` and ``tls``."""

    @functools.wraps(function)
    def run(
        *,
        token_file: Path | None,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **own: Any,  # noqa: ANN401 - the command's own options
    ) -> int:
        token, tls = _read_token(token_file), _read_tls(tls_ca, tls_cert, tls_key)
        return function(token=token, tls=tls, **own)

    return _credential_options(run)


topic_options = with_options(
    option(
        "--pubsub-topic",
        metavar="TOPIC",
        section=_FILTER,
        help="Only messages on this pubsub topic.",
    ),
    option(
        "-t",
        "--content-topic",
        "content_topics",
        multiple=True,
        metavar="TOPIC",
        section=_FILTER,
        help="Only messages on this content topic; may be repeated.",
    ),
)
"""The options of a content filter."""


def _check_range(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    bounds = {**ctx.params, param.name: value}
    start, end = bounds.get("time_start"), bounds.get("time_end")
    if start is not None and end is not None and end < start:
        raise click.UsageError("--to is earlier than --from: no message can match.")
    return value


time_options = with_options(
    option(
        "--from",
        "time_start",
        type=TIME,
        callback=_check_range,
        section=_FILTER,
        help=f"Only messages from this time on: {TIME_FORMS}.",
    ),
    option(
        "--to",
        "time_end",
        type=TIME,
        callback=_check_range,
        section=_FILTER,
        help="Only messages before this time, written in the same ways.",
    ),
)
"""The options of a time range."""


def entry(text: str) -> tuple[str, bytes | None]:
    """Read `ID[@HINT]`; only 64 hexadecimal digits after the last @ are a hint."""
    match = _HINTED.fullmatch(text)
    return (text, None) if match is None else (match[1], parse_hex(match[2]))


ENTRY = Parsed("entry", "ID[@HINT]", entry)


def _connection_options(
    name: str, default: str, *, has_payloads: bool
) -> Callable[[Command], Command]:
    shapes = ("table", "json", "raw") if has_payloads else ("table", "json")
    raw = "; raw: unchanged payloads, each followed by a line feed" if has_payloads else ""
    return with_options(
        option(
            name,
            "address",
            default=default,
            show_default=True,
            metavar="HOST:PORT",
            section=_CONNECTION,
            help="Address of the node.",
        ),
        with_credentials,
        option(
            "--output",
            "shape",
            type=click.Choice(shapes),
            default="table",
            show_default=True,
            section=_OUTPUT,
            help="table: lines of text; json: one object per line, bytes in lower-case hexadecimal"
            + raw
            + ".",
        ),
        option("--json", "as_json", is_flag=True, section=_OUTPUT, help="Same as --output json."),
    )
