"""`storenode publish`: messages from the command line, a file, or a pipe."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from storenode.cli.client.message_builder import JsonLines, MessageBuilder
from storenode.cli.client.output import Output
from storenode.cli.client.session import ENTRY, HEX, CommandSession, connected, drop_output
from storenode.cli.client.source import lines, open_input, whole
from storenode.cli.client.text import TIME, TIME_FORMS, counted, note, safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.client.messages import outcome_name, publish_requests
from storenode.client.plain import to_plain
from storenode.client.sds_messages import sds_view
from storenode.message.limits import NS_PER_S
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC

if TYPE_CHECKING:
    from storenode.client.node import Entry
    from storenode.client.types import PublishRequest, PublishResult, WakuMessageAndTopic


_INPUT = "Input"
_MESSAGE = "Message"
_SDS = "SDS message"
_CONFIRMATION = "Confirmation"
_UNWANTED: Final = frozenset({"REJECTED", "UNCONFIRMED"})
_Read = Callable[[bytes], "WakuMessageAndTopic | None"]
_FIELDS_OF_A_MESSAGE: Final = (
    *("payload", "by_line", "pubsub_topic", "content_topic", "timestamp", "meta", "ephemeral"),
    *("channel", "sender", "parents", "message_id"),
)


@dataclass(frozen=True, slots=True)
class _Input:
    """A payload, or else the lines of an input, and the function that makes messages of them."""

    payload: bytes | None
    fd: int
    read: _Read

    async def messages(self) -> AsyncGenerator[list[WakuMessageAndTopic], None]:
        """Yield messages, as many together as arrived together."""
        if self.payload is not None:
            yield self._read([self.payload])
        else:
            async for chunk in lines(self.fd):
                yield self._read(chunk)

    def _read(self, payloads: list[bytes]) -> list[WakuMessageAndTopic]:
        made = (self.read(payload) for payload in payloads)
        return [message for message in made if message is not None]


@click.command(cls=LayeredCommand)
@click.argument("payload", required=False)
@option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    section=_INPUT,
    help="Read the payload from a file; - is standard input, the default without a payload.",
)
@option(
    "--lines", "by_line", is_flag=True, section=_INPUT, help="One message per line of the input."
)
@option(
    "--json-input",
    is_flag=True,
    section=_INPUT,
    help="One message per line, as `storenode scan --json` prints them.",
)
@option(
    "--pubsub-topic",
    default=DEFAULT_PUBSUB_TOPIC,
    show_default=True,
    metavar="TOPIC",
    section=_MESSAGE,
    help="Pubsub topic of the message.",
)
@option(
    "-t",
    "--content-topic",
    metavar="TOPIC",
    section=_MESSAGE,
    help="What the message is about, such as /app/1/chat/proto; needed without --json-input.",
)
@option(
    "--timestamp",
    type=TIME,
    section=_MESSAGE,
    help=f"{TIME_FORMS}; each further message is 1 ns later.  [default: now]",
)
@option("--meta", type=HEX, section=_MESSAGE, help="At most 64 bytes.")
@option("--ephemeral", is_flag=True, section=_MESSAGE, help="For live followers only, not stored.")
@option("--channel", section=_SDS, help="Publish SDS messages of this channel.")
@option("--sender", default="", section=_SDS, help="Sender ID.")
@option(
    "--parent",
    "parents",
    multiple=True,
    type=ENTRY,
    section=_SDS,
    help="A message that this one depends on; may be repeated. Each further line depends on the "
    "one before it.",
)
@option(
    "--message-id", metavar="ID", section=_SDS, help="[default: the hash that proves the message]"
)
@option(
    "--min-confirms",
    type=click.IntRange(min=0, max=2**32 - 1),
    default=0,
    show_default=True,
    section=_CONFIRMATION,
    help="Number of other stores that must confirm each message before the node answers.",
)
@option(
    "--confirm-timeout",
    type=POSITIVE_DURATION,
    section=_CONFIRMATION,
    help="How long to wait for confirmations.  [default: the node's]",
)
@connected()
async def publish(
    session: CommandSession,
    *,
    payload: str | None,
    file: Path | None,
    by_line: bool,
    json_input: bool,
    pubsub_topic: str,
    content_topic: str | None,
    timestamp: int | None,
    meta: bytes | None,
    ephemeral: bool,
    channel: str | None,
    sender: str,
    parents: tuple[Entry, ...],
    message_id: str | None,
    min_confirms: int,
    confirm_timeout: int | None,
) -> int:
    """Publish one or many messages, and print the outcome and the hash of each.

    The exit code is 1 when one was rejected or not confirmed as asked.
    """
    _check(click.get_current_context())
    if json_input:
        read: _Read = JsonLines().read
    else:
        read = MessageBuilder(
            pubsub_topic=pubsub_topic,
            content_topic=content_topic or "",
            timestamp_ns=timestamp,
            meta=meta,
            ephemeral=ephemeral,
            channel_id=channel,
            sender_id=sender,
            parents=parents,
            message_id=message_id,
        ).make
    fd = open_input(file)
    if payload is not None:
        content: bytes | None = payload.encode("utf-8", "surrogateescape")
    elif by_line or json_input:
        content = None
    else:
        if os.isatty(fd):
            note("The payload is what you type now: end it by Ctrl-D.")
        if not (content := await whole(fd)):
            raise CliError(
                USAGE, "The input is empty: to publish an empty message, give '' as the payload."
            )
    source = _Input(content, fd, read)
    requests = _requests(
        source, min_confirms, None if confirm_timeout is None else confirm_timeout / NS_PER_S
    )
    try:
        return await _publish(session, requests, sds=channel is not None)
    except BrokenPipeError as error:
        drop_output()
        raise CliError(FAILED, "Standard output was closed: publishing has stopped.") from error


def _check(ctx: click.Context) -> None:
    """Refuse options that contradict each other; a setting of the environment never does."""
    given = {name for name in ctx.params if _on_command_line(ctx, name)}
    if "json_input" in given and given & set(_FIELDS_OF_A_MESSAGE):
        raise click.UsageError(
            "--json-input takes the whole message from its line: leave out the payload and the "
            "options that describe a message."
        )
    if not ctx.params["json_input"] and not ctx.params["content_topic"]:
        raise click.UsageError("Missing option --content-topic: what is the message about?")
    if "payload" in given and given & {"file", "by_line"}:
        raise click.UsageError("Give a payload, or an input by --file and --lines, not both.")
    if ctx.params["channel"] is None and given & {"sender", "parents", "message_id"}:
        raise click.UsageError("--sender, --parent and --message-id need a --channel.")
    if ctx.params["by_line"] and "message_id" in given:
        raise click.UsageError("--message-id names a single message: leave out --lines.")


def _on_command_line(ctx: click.Context, name: str) -> bool:
    given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    return given and ctx.params[name] is not None


async def _requests(
    source: _Input, min_confirms: int, confirm_timeout_s: float | None
) -> AsyncGenerator[PublishRequest, None]:
    async with aclosing(source.messages()) as chunks:
        async for messages in chunks:
            for request in publish_requests(
                messages, min_confirms=min_confirms, confirm_timeout_s=confirm_timeout_s
            ):
                yield request


async def _publish(
    session: CommandSession, requests: AsyncGenerator[PublishRequest, None], *, sds: bool
) -> int:
    total = unwanted = 0
    async with aclosing(session.client.publish_stream(requests)) as answers:
        async for request, response in answers:
            for message, result in zip(request.messages, response.results, strict=True):
                _print(session.out, message, result, sds=sds)
                total += 1
                unwanted += outcome_name(result) in _UNWANTED
            session.out.flush()
    if unwanted:
        raise CliError(
            FAILED,
            f"{unwanted} of {total} messages were rejected or not confirmed: each line says why.",
        )
    return OK


def _print(out: Output, message: WakuMessageAndTopic, result: PublishResult, *, sds: bool) -> None:
    view = sds_view(message.message.payload) if sds else None
    if out.as_json:
        out.json({**to_plain(result), **({"message_id": view.message_id} if view else {})})
        return
    parts = [f"{outcome_name(result):<9}", result.message_hash.hex()]
    if view is not None:
        parts.append(safe(view.message_id))
    if result.reason:
        parts.append(safe(result.reason))
    elif result.confirms:
        parts.append(f"confirmed by {counted(result.confirms, 'other store')}")
    out.line("  ".join(parts))
