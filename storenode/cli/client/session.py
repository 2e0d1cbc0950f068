"""The options of the connection of a client command, and the end of its call."""

from __future__ import annotations

import asyncio
import functools
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from storenode.cli.client.output import Output
from storenode.cli.client.text import TIME, TIME_FORMS, safe
from storenode.cli.errors import FAILED, OK, UNREACHABLE, USAGE, CliError, drop_output
from storenode.cli.options.layers import option, read_file, with_options
from storenode.cli.options.types import Parsed
from storenode.client.node import NodeClient, connect, content_filter
from storenode.common.errors import ArgumentError, StorenodeError
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import ClientOptionError, NodeError, NodeUnavailableError
from storenode.message.limits import HASH_BYTES
from storenode.message.text import parse_hex

if TYPE_CHECKING:
    from storenode.client.types import AnswerCoverage

DEFAULT_NODE = "127.0.0.1:7420"
DEFAULT_ADMIN = "127.0.0.1:7421"

MAX_TOKEN_FILE_BYTES: Final = 16 * 1024
MAX_PEM_FILE_BYTES: Final = 1024 * 1024
"""A token or PEM file; anything larger is a mistake."""

HEX = Parsed("hex", "HEX", parse_hex)
COUNT: Final = click.IntRange(min=0, max=2**32 - 1)


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

connection_option: Final = functools.partial(option, section="Connection")
filter_option: Final = functools.partial(option, section="Filter")
_output_option: Final = functools.partial(option, section="Output")

_RAW: Final = "; raw: unchanged payloads, each followed by a line feed"

Command = Callable[..., int]
Call = Callable[..., Awaitable[int]]


@dataclass(frozen=True, slots=True)
class CommandSession:
    """A connected client and where its answers go."""

    client: NodeClient
    out: Output
    coverage: list[AnswerCoverage] = field(default_factory=list)
    """The coverage that the pages of an answer report."""


def connected(
    option_name: str = "--node",
    default: str = DEFAULT_NODE,
    *,
    interrupt_ends: bool = False,
    has_payloads: bool = False,
    has_filter: bool = False,
) -> Callable[[Call], Command]:
    """Make a command of a call: add the connection's options, run it, translate its errors.

    The call gets a `CommandSession` and the command's own options and returns the exit code. With
    ``interrupt_ends`` Ctrl-C is the usual way to end it, and a success. With ``has_payloads`` the
    output may be the bare payloads, and with ``has_filter`` the call gets what `topic_options` say
    as ``filter``.
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
                        if has_filter:
                            topics = own.pop("pubsub_topic"), own.pop("content_topics")
                            own["filter"] = content_filter(*topics)
                        return await call(CommandSession(client, out), **own)
                    finally:
                        out.finish()

            return run_session(session(), interrupt_ends=interrupt_ends)

        return with_options(
            connection_option(
                option_name,
                "address",
                default=default,
                show_default=True,
                metavar="HOST:PORT",
                help="Address of the node.",
            ),
            with_credentials,
            _output_option(
                "--output",
                "shape",
                type=click.Choice(["table", "json", *(["raw"] if has_payloads else [])]),
                default="table",
                show_default=True,
                help="table: lines of text; json: one object per line, bytes in lower-case"
                f" hexadecimal{_RAW if has_payloads else ''}.",
            ),
            _output_option("--json", "as_json", is_flag=True, help="Same as --output json."),
        )(run)

    return decorate


def run_session(session: Coroutine[Any, Any, int], *, interrupt_ends: bool = False) -> int:
    """Run a session, translate what ends it, and return the exit code.

    With ``interrupt_ends`` Ctrl-C is a success.
    """
    try:
        return asyncio.run(_interruptible(session))
    except NodeError as error:
        code = UNREACHABLE if isinstance(error, NodeUnavailableError) else FAILED
        raise CliError(code, safe(error.sentence)) from error
    except StorenodeError as error:
        is_usage = isinstance(error, ClientOptionError | ArgumentError)
        raise CliError(USAGE if is_usage else FAILED, safe(str(error))) from error
    except UnicodeEncodeError as error:
        raise CliError(
            USAGE, "An option holds bytes that are not UTF-8, which no field of a message takes."
        ) from error
    except BrokenPipeError:
        # The reader has seen enough, which is no failure of the command.
        drop_output()
        return OK
    except (asyncio.CancelledError, KeyboardInterrupt):
        if interrupt_ends:
            return OK
        raise KeyboardInterrupt from None


async def _interruptible(session: Coroutine[Any, Any, int]) -> int:
    """Run a session that Ctrl-C cancels.

    `asyncio.run` alone would not wake for a signal that comes just before its event loop sleeps.
    """
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError):  # on Windows; in a thread of an application
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await session


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    named = f"The file {path} of --token-file"
    try:
        return read_file(path, named, MAX_TOKEN_FILE_BYTES).decode().strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{named} is not text.") from error


def _pem(flag: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    named = f"The file {path} of {flag}"
    text = read_file(path, named, MAX_PEM_FILE_BYTES)
    if b"-----BEGIN " not in text:
        raise click.UsageError(f"{named} is not PEM: name one that is.")
    return text


_file_option = functools.partial(
    connection_option, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE"
)
_credential_options = with_options(
    _file_option("--token-file", help="File with this client's token; needs TLS beyond loopback."),
    _file_option(
        "--tls-ca", help="Connect with TLS and trust the certificate authorities in this PEM file."
    ),
    _file_option(
        "--tls-cert", help="PEM file with this client's certificate, for a node that requires one."
    ),
    _file_option("--tls-key", help="PEM file with the key of that certificate."),
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
        if (tls_cert is None) != (tls_key is None):
            raise CliError(USAGE, "--tls-cert and --tls-key go together: give both or neither.")
        identity = TlsIdentity(
            _pem("--tls-ca", tls_ca), _pem("--tls-cert", tls_cert), _pem("--tls-key", tls_key)
        )
        tls = None if identity == TlsIdentity() else identity
        return function(token=_token(token_file), tls=tls, **own)

    return _credential_options(run)


topic_options = with_options(
    filter_option("--pubsub-topic", metavar="TOPIC", help="Only messages on this pubsub topic."),
    filter_option(
        "-t",
        "--content-topic",
        "content_topics",
        multiple=True,
        metavar="TOPIC",
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
    filter_option(
        "--from",
        "time_start",
        type=TIME,
        callback=_check_range,
        help=f"Only messages from this time on: {TIME_FORMS}.",
    ),
    filter_option(
        "--to",
        "time_end",
        type=TIME,
        callback=_check_range,
        help="Only messages before this time, written in the same ways.",
    ),
)
"""The options of a time range."""


def entry(text: str) -> tuple[str, bytes | None]:
    """Read `ID[@HINT]`; only 64 hexadecimal digits after the last @ are a hint."""
    match = _HINTED.fullmatch(text)
    return (text, None) if match is None else (match[1], parse_hex(match[2]))


ENTRY = Parsed("entry", "ID[@HINT]", entry)
