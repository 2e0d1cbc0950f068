"""`storenode publish`: messages from the command line, a file, or a pipe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from storenode.cli.client.output import Output
from storenode.cli.client.session import ENTRY, HEX, CommandSession, connected, drop_output
from storenode.cli.client.source import lines, open_input, whole
from storenode.cli.client.text import TIME, TIME_FORMS, counted, note, safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.client.messages import hash_of, new_message, outcome_name, publish_requests
from storenode.client.plain import message_from_plain, to_plain
from storenode.client.sds_messages import sds_payload, sds_view
from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.proofs import message_digest

if TYPE_CHECKING:
    from storenode.client.node import Entry
    from storenode.client.types import PublishRequest, PublishResult, WakuMessageAndTopic


_INPUT = "Input"
_MESSAGE = "Message"
_SDS = "SDS message"
_CONFIRMATION = "Confirmation"
_UNWANTED: Final = frozenset({"REJECTED", "UNCONFIRMED"})
_NS_PER_MS: Final = 1_000_000
_CURSOR_KEYS: Final = frozenset({"cursor", "pagination_cursor"})
_Read = Callable[[bytes], "WakuMessageAndTopic | None"]
_FIELDS_OF_A_MESSAGE: Final = (
    *("payload", "by_line", "pubsub_topic", "content_topic", "timestamp_ns", "meta", "ephemeral"),
    *("channel_id", "sender_id", "parents", "message_id"),
)


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
    "timestamp_ns",
    type=TIME,
    section=_MESSAGE,
    help=f"{TIME_FORMS}; each further message is 1 ns later.  [default: now]",
)
@option("--meta", type=HEX, section=_MESSAGE, help="At most 64 bytes.")
@option("--ephemeral", is_flag=True, section=_MESSAGE, help="For live followers only, not stored.")
@option("--channel", "channel_id", section=_SDS, help="Publish SDS messages of this channel.")
@option("--sender", "sender_id", default="", section=_SDS, help="Sender ID.")
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
    min_confirms: int,
    confirm_timeout: int | None,
    **message: Any,  # noqa: ANN401 - the arguments of `MessageBuilder`
) -> int:
    """Publish one or many messages, and print the outcome and the hash of each.

    The exit code is 1 when one was rejected or not confirmed as asked.
    """
    _check(click.get_current_context())
    read: _Read = JsonLines().read if json_input else MessageBuilder(**message).make
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
    confirm_timeout_s = None if confirm_timeout is None else confirm_timeout / NS_PER_S
    requests = _requests(content, fd, read, min_confirms, confirm_timeout_s)
    try:
        return await _publish(session, requests, sds=message["channel_id"] is not None)
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
    if ctx.params["channel_id"] is None and given & {"sender_id", "parents", "message_id"}:
        raise click.UsageError("--sender, --parent and --message-id need a --channel.")
    if ctx.params["by_line"] and "message_id" in given:
        raise click.UsageError("--message-id names a single message: leave out --lines.")


def _on_command_line(ctx: click.Context, name: str) -> bool:
    given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    return given and ctx.params[name] is not None


async def _requests(
    payload: bytes | None,
    fd: int,
    read: _Read,
    min_confirms: int,
    confirm_timeout_s: float | None,
) -> AsyncGenerator[PublishRequest, None]:
    """Yield requests for a payload, or for lines: those that arrived together, together."""
    async with aclosing(lines(fd) if payload is None else _once(payload)) as chunks:
        async for chunk in chunks:
            made = (read(each) for each in chunk)
            for request in publish_requests(
                (message for message in made if message is not None),
                min_confirms=min_confirms,
                confirm_timeout_s=confirm_timeout_s,
            ):
                yield request


async def _once(payload: bytes) -> AsyncGenerator[list[bytes], None]:
    yield [payload]


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
    parts = [f"{outcome_name(result):<9}", result.message_hash.hex()]
    if view is not None:
        parts.append(view.message_id)
    if result.reason:
        parts.append(result.reason)
    elif result.confirms:
        parts.append(f"confirmed by {counted(result.confirms, 'other store')}")
    message_id = {"message_id": view.message_id} if view else {}
    out.record({**to_plain(result), **message_id}, "  ".join(parts))


class MessageBuilder:
    """Makes one message after the other, each with a timestamp of its own.

    ``timestamp_ns`` is the first one's; None: now. With ``channel_id`` they are SDS messages, of
    which the first names ``parents``, and each other one the one before.
    """

    def __init__(
        self,
        *,
        pubsub_topic: str,
        content_topic: str,
        timestamp_ns: int | None,
        meta: bytes | None = None,
        ephemeral: bool = False,
        channel_id: str | None = None,
        sender_id: str = "",
        parents: tuple[Entry, ...] = (),
        message_id: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._topics = content_topic, pubsub_topic
        self._wanted_ns = timestamp_ns
        self._meta = meta
        self._ephemeral = ephemeral or None
        self._channel_id = channel_id
        self._sender_id = sender_id
        self._parents = parents
        self._message_id = message_id
        self._clock = clock
        self._last_ns: int | None = None
        self._last_lamport = 0

    def make(self, payload: bytes) -> WakuMessageAndTopic:
        """Wrap a payload, in an SDS message where a channel is given.

        Raises:
            CliError: It would be no SDS message.
        """
        message_id = ""
        if self._channel_id is not None:
            message_id, payload = self._wrapped(self._channel_id, payload)
        message = new_message(
            payload,
            *self._topics,
            self._timestamp_ns(),
            meta=self._meta,
            ephemeral=self._ephemeral,
        )
        if message_id:
            self._parents = ((message_id, _hint(message)),)
        return message

    def _timestamp_ns(self) -> int:
        first = self._clock() if self._wanted_ns is None else self._wanted_ns
        # Equal payloads must not become one message.
        if self._last_ns is not None:
            first = min(max(first, self._last_ns + 1), MAX_TIMESTAMP_NS)
        self._last_ns = first
        return first

    def _wrapped(self, channel_id: str, content: bytes) -> tuple[str, bytes]:
        """Return the ID and the payload of an SDS message; by default its ID is its hash."""
        lamport = self._last_lamport = max(self._clock() // _NS_PER_MS, self._last_lamport + 1)
        names = [parent.encode() for parent, _ in self._parents]
        who = channel_id.encode(), self._sender_id.encode()
        message_id = self._message_id or message_digest(*who, lamport, names, content)
        try:
            return message_id, sds_payload(
                channel_id,
                message_id,
                content,
                sender_id=self._sender_id,
                lamport=lamport,
                parents=self._parents,
            )
        except ValueError as error:
            raise CliError(USAGE, safe(str(error))) from error


def _hint(message: WakuMessageAndTopic) -> bytes | None:
    try:
        return hash_of(message)
    except ValueError:
        # The timestamp that was asked for has no hash; the node says so in its answer.
        return None


class JsonLines:
    """Reads what `scan --json` prints back into messages."""

    def __init__(self) -> None:
        self._line = 0

    def read(self, line: bytes) -> WakuMessageAndTopic | None:
        """Parse the message of one line; ``None`` for a blank one and for a cursor.

        Raises:
            CliError: The line is something else.
        """
        self._line += 1
        if not line.strip():
            return None
        try:
            value = json.loads(line)
            if isinstance(value, dict) and _CURSOR_KEYS & value.keys():
                return None
            return message_from_plain(value)
        except ArgumentError as error:
            raise self._refused(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise self._refused("it is not JSON in UTF-8") from error

    def _refused(self, cause: str) -> CliError:
        return CliError(FAILED, f"Line {self._line} of the input is no message: {safe(cause)}.")
