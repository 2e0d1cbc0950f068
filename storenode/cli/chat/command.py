"""`storenode chat`: people in one SDS channel, each in a terminal or behind a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click

from storenode.cli.chat.transcript import Line, LineKind, Transcript, now_ms
from storenode.cli.client.output import Output
from storenode.cli.client.session import (
    DEFAULT_NODE,
    connection_option,
    run_session,
    with_credentials,
)
from storenode.cli.client.source import lines
from storenode.cli.client.text import counted, note, safe
from storenode.cli.errors import FAILED, OK, UNREACHABLE, USAGE, CliError, mute_library
from storenode.cli.options.layers import LayeredCommand, option
from storenode.connection.channel import TlsIdentity
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.status import Status
from storenode.sds.channel import ChannelFullError
from storenode.sds.config import DEFAULT_CHANNEL_ID

_chat: Final = partial(option, section="Chat")
_CURSORLESS: Final = ("", "dumb", "unknown")
_STANDARD_INPUT: Final = 0

CATCH_UP_TIMEOUT_S: Final = 5.0
"""The longest wait of lines of a pipe for the history, which they name as their cause."""

CONNECT_TIMEOUT_S: Final = 3.0
"""The longest wait of lines of a pipe for a node while none is reachable."""

LEAVE_TIMEOUT_S: Final = 20.0
"""The longest wait at the end of a pipe for lines that no node has stored."""


@click.command(cls=LayeredCommand)
@_chat(
    "--channel",
    "channel_id",
    default=DEFAULT_CHANNEL_ID,
    show_default=True,
    help="Channel to join; a group that has only one need not name it.",
)
@_chat("--name", required=True, help="Your name; it must be unique in the channel.")
@_chat(
    "--state",
    metavar="FILE",
    help="File that keeps the chat between runs; by default nothing is kept.",
)
@_chat("--pubsub-topic", default=DEFAULT_PUBSUB_TOPIC, show_default=True)
@_chat(
    "-t",
    "--content-topic",
    help="Must be the same for all participants; /sds/1/CHANNEL/proto by default.",
)
@connection_option(
    "--node",
    "nodes",
    multiple=True,
    default=(DEFAULT_NODE,),
    show_default=True,
    metavar="HOST:PORT",
    help="Node to use; repeatable, the next one is used when one is unreachable.",
)
@with_credentials
def chat(
    *,
    nodes: tuple[str, ...],
    token: str | None,
    tls: TlsIdentity | None,
    **chosen: Any,  # noqa: ANN401 - the options of the chat itself
) -> int:
    """Open a chat in a channel. All participants see the same lines in the same order.

    Marks before your own lines: … not sent yet, · stored by a node, ? probably received, ✓ received
    by a participant, ✗ refused or given up. /help lists commands and keys, /quit or Ctrl-C
    leaves. The line above the prompt shows whether anything is missing, and the state of your last
    lines; /missing shows more.

    "(not verified)" marks a line whose ID is not the hash of its content: another sender may have
    made it. A line that arrives under the ID of another line is shown as FORGED.

    Without a terminal, or if TERM is `dumb`, each line of the input is sent as it is, and messages
    are printed as they arrive, with times in UTC and continuation lines indented.
    """
    mute_library()
    places = [StoreNode(address, token, tls) for address in nodes]
    return run_session(_talk(places, **chosen), interrupt_ends=True)


async def _talk(
    places: list[StoreNode],
    *,
    channel_id: str,
    name: str,
    state: str | None,
    **options: Any,  # noqa: ANN401 - of the channel
) -> int:
    is_kept = state is not None
    async with Channel.join(places, channel_id, name, state=state, **options) as channel:
        if _has_terminal():
            await _run_on_terminal(channel, name, channel_id)
        else:
            await _run_on_pipe(channel, name, is_kept=is_kept)
    # Leaving has waited for what is on its way.
    if channel.status.unpublished:
        raise _not_sent(channel.status, is_kept=is_kept)
    return OK


def _has_terminal() -> bool:
    """Return True if there is a terminal, and one whose cursor can be moved."""
    terminal = os.environ.get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and terminal not in _CURSORLESS


async def _run_on_terminal(channel: Channel, name: str, channel_id: str) -> None:
    try:
        from storenode.cli.chat.terminal import TerminalChat  # noqa: PLC0415 - an extra may lack it
    except ModuleNotFoundError as error:
        raise CliError(
            USAGE, "The chat needs prompt-toolkit: install storenode with its extra `chat`."
        ) from error
    await TerminalChat(channel, name, channel_id).run()


async def _run_on_pipe(channel: Channel, name: str, *, is_kept: bool) -> None:
    """Send every line of the input, print what comes, and wait at the end until all is published.

    Raises:
        CliError: A line reached no node in time.
    """
    async with channel.events() as events:
        transcript, show = Transcript(name, now_ms()), partial(_print, Output())
        printer = asyncio.create_task(transcript.follow(channel, events, show))
        try:
            await _connect(channel, is_kept=is_kept)
            async for some in lines(_STANDARD_INPUT):
                for line in filter(bytes.strip, some):
                    await _send(channel, line)
            await _settle(channel, is_kept=is_kept)
            events.close()
            await printer
        finally:
            printer.cancel()
            await asyncio.wait({printer})


def _print(out: Output, lines: list[Line]) -> None:
    for line in lines:
        for row in line.plain():
            (out.shown if line.kind is LineKind.MESSAGE else note)(row)
        out.flush()


async def _connect(channel: Channel, *, is_kept: bool) -> None:
    """Wait a little for a node and its history; print at once why none is reachable.

    Raises:
        CliError: None is, and lines would be lost.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            status = await channel.wait_for(lambda status: bool(status.node or status.trouble))
            if status.node is None:
                note(f"{safe(status.trouble)} Trying for {CONNECT_TIMEOUT_S:.0f} s.")
                await channel.wait_for(lambda status: status.node is not None)
    except TimeoutError:
        if not is_kept:
            raise _offline("Nothing was sent", channel.status) from None
        return
    with suppress(TimeoutError):
        await channel.wait_for(lambda status: status.synced, CATCH_UP_TIMEOUT_S)


async def _send(channel: Channel, line: bytes) -> None:
    try:
        await channel.send(line)
    except (ChannelFullError, ValueError) as error:
        raise CliError(FAILED, f"A line was not sent: {safe(str(error))}.") from error


async def _settle(channel: Channel, *, is_kept: bool) -> None:
    """Wait until everything is published, and everything of others is printed."""
    with suppress(TimeoutError):
        # Without a node, a state keeps the lines for the next run.
        if not is_kept or channel.status.node is not None:
            await channel.wait_for(
                lambda status: status.synced and not status.unpublished, LEAVE_TIMEOUT_S
            )
            # What is saved by now was handed out.
            await channel.log(1)
            return
    status = channel.status
    if status.node is None:
        raise _not_sent(status, is_kept=is_kept)
    raise CliError(
        FAILED, f"The chat ends as it is ({status}): {safe(status.trouble) or 'try again'}"
    )


def _not_sent(status: Status, *, is_kept: bool) -> CliError:
    lines_left = counted(status.unpublished, "line")
    if is_kept:
        return _offline(f"{lines_left} kept in the state, to be sent by the next run", status)
    return _offline(f"{lines_left} not sent", status)


def _offline(text: str, status: Status) -> CliError:
    trouble = safe(status.trouble) or "No node has answered."
    return CliError(UNREACHABLE, f"{text}: {trouble}")
