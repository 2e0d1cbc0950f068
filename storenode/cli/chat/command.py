"""`storenode chat`: people in one SDS channel, each in a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from storenode.cli.chat.plain import PlainChat, not_sent
from storenode.cli.client.session import (
    DEFAULT_NODE,
    credential_options,
    drop_output,
    ended_by,
    interruptible,
    tls_of,
    token_of,
)
from storenode.cli.errors import OK, USAGE, CliError, mute_library
from storenode.cli.options.layers import LayeredCommand, option
from storenode.common.errors import StorenodeError
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.node import StoreNode
from storenode.sds.config import DEFAULT_CHANNEL_ID

_CHAT = "Chat"
_CURSORLESS: Final = ("", "dumb", "unknown")


@click.command(cls=LayeredCommand)
@option(
    "--channel",
    "channel_id",
    default=DEFAULT_CHANNEL_ID,
    show_default=True,
    section=_CHAT,
    help="Channel to join; a group that has only one need not name it.",
)
@option("--name", required=True, section=_CHAT, help="Your name; it must be unique in the channel.")
@option(
    "--state",
    metavar="FILE",
    section=_CHAT,
    help="File that keeps the chat between runs; by default nothing is kept.",
)
@option("--pubsub-topic", default=DEFAULT_PUBSUB_TOPIC, show_default=True, section=_CHAT)
@option(
    "-t",
    "--content-topic",
    section=_CHAT,
    help="Must be the same for all participants; /sds/1/CHANNEL/proto by default.",
)
@option(
    "--node",
    "nodes",
    multiple=True,
    default=(DEFAULT_NODE,),
    show_default=True,
    metavar="HOST:PORT",
    section="Connection",
    help="Node to use; repeatable, the next one is used when one is unreachable.",
)
@credential_options
def chat(
    *,
    nodes: tuple[str, ...],
    token_file: Path | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    **chosen: Any,  # noqa: ANN401 - the options of the chat itself
) -> int:
    """Open a chat in a channel. All participants see the same lines in the same order.

    Marks before your own lines: … not sent yet, · stored by a node, ? probably received, ✓ received
    by a participant, ✗ refused or given up. /help lists commands and keys, /quit or Ctrl-C
    leaves. The line above the prompt shows whether anything is missing, and the state of your last
    lines; /missing shows more.

    "(not verified)" marks a line whose ID is not the hash of its content. Lines that arrive under
    the ID of another line are shown as FORGED; /forged lists them.

    Without a terminal, or if TERM is `dumb`, each line of the input is sent as it is, and messages
    are printed as they arrive, with times in UTC and continuation lines indented.
    """
    token, tls = token_of(token_file), tls_of(tls_ca, tls_cert, tls_key)
    mute_library()
    places = [StoreNode(address, token, tls) for address in nodes]
    try:
        asyncio.run(interruptible(_talk(places, **chosen)))
    except StorenodeError as error:
        raise ended_by(error) from error
    except BrokenPipeError:
        # Whoever reads has seen enough, which is no failure of ours.
        drop_output()
    except (asyncio.CancelledError, KeyboardInterrupt):
        pass
    return OK


async def _talk(
    places: list[StoreNode],
    *,
    channel_id: str,
    name: str,
    state: str | None,
    pubsub_topic: str,
    content_topic: str | None,
) -> None:
    keeps = state is not None
    async with Channel.join(
        places,
        channel_id,
        name,
        pubsub_topic=pubsub_topic,
        content_topic=content_topic,
        state=state,
    ) as channel:
        if _has_terminal():
            await _on_terminal(channel, name, channel_id, keeps=keeps)
        else:
            await PlainChat(channel, name, keeps=keeps).run()
    # Leaving has waited for what is on its way.
    if channel.status.unpublished:
        raise not_sent(channel.status, keeps=keeps)


def _has_terminal() -> bool:
    """Return True if there is a terminal, and one whose cursor can be moved."""
    terminal = os.environ.get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and terminal not in _CURSORLESS


async def _on_terminal(channel: Channel, name: str, channel_id: str, *, keeps: bool) -> None:
    try:
        from storenode.cli.chat.terminal import TerminalChat  # noqa: PLC0415 - an extra may lack it
    except ModuleNotFoundError as error:
        raise CliError(
            USAGE, "The chat needs prompt-toolkit: install storenode with its extra `chat`."
        ) from error
    await TerminalChat(channel, name, channel_id, keeps=keeps).run()
