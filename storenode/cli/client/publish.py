"""`storenode publish`: messages from the command line, a file, or a pipe."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from storenode.cli.client.output import Output
from storenode.cli.client.session import COUNT, ENTRY, HEX, CommandSession, connected
from storenode.cli.client.source import lines, open_input, whole
from storenode.cli.client.text import TIME, TIME_FORMS, counted, safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError, drop_output
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

_input: Final = partial(option, section="Input")
_message: Final = partial(option, section="Message")
_sds: Final = partial(option, section="SDS message")
_confirmation: Final = partial(option, section="Confirmation")
_WANTED: Final = frozenset({"STORED", "DUPLICATE", "EPHEMERAL"})
_NS_PER_MS: Final = 1_000_000
_CURSOR_KEYS: Final = frozenset({"cursor", "pagination_cursor"})
_Read = Callable[[bytes], "WakuMessageAndTopic | None"]


@click.command(cls=LayeredCommand)
@click.argument("payload", required=False)
@_input(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the payload from a file; - is standard input, the default without a payload.",
)
@_input("--lines", "by_line", is_flag=True, help="One message per line of the input.")
@_input(
    "--json-input",
    is_flag=True,
    help="One message per line, as `storenode scan --json` prints them.",
)
@_message(
    "--pubsub-topic",
    default=DEFAULT_PUBSUB_TOPIC,
    show_default=True,
    metavar="TOPIC",
    help="Pubsub topic of the message.",
)
@_message(
    "-t",
    "--content-topic",
    metavar="TOPIC",
    help="What the message is about, such as /app/1/chat/proto; needed without --json-input.",
)
@_message(
    "--timestamp",
    "timestamp_ns",
    type=TIME,
    help=f"{TIME_FORMS}; each further message is 1 ns later.  [default: now]",
)
@_message("--meta", type=HEX, help="At most 64 bytes.")
@_message("--ephemeral", is_flag=True, help="For live followers only, not stored.")
@_sds("--channel", "channel_id", help="Publish SDS messages of this channel.")
@_sds("--sender", "sender_id", default="", help="Sender ID.")
@_sds(
    "--parent",
    "parents",
    multiple=True,
    type=ENTRY,
    help="A message that this one depends on; may be repeated. Each further line depends on the "
    "one before it.",
)
@_sds("--message-id", metavar="ID", help="[default: the hash that proves the message]")
@_confirmation(
    "--min-confirms",
    type=COUNT,
    default=0,
    show_default=True,
    help="Number of other stores that must confirm each message before the node answers.",
)
@_confirmation(
    "--confirm-timeout",
    type=POSITIVE_DURATION,
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
    read: _Read = json_reader() if json_input else MessageBuilder(**message).make
    fd = open_input(file)
    if payload is not None:
        chunks = _once(payload.encode("utf-8", "surrogateescape"))
    else:
        chunks = lines(fd) if by_line or json_input else _once(await whole(fd))
    group = partial(
        publish_requests,
        min_confirms=min_confirms,
        confirm_timeout_s=None if confirm_timeout is None else confirm_timeout / NS_PER_S,
    )
    requests = _requests(chunks, read, group)
    try:
        return await _publish(session, requests, sds=message["channel_id"] is not None)
    except BrokenPipeError as error:
        drop_output()
        raise CliError(FAILED, "Standard output was closed: publishing has stopped.") from error


def _check(ctx: click.Context) -> None:
    """Refuse options that contradict each other; a setting of the environment never does."""
    given = {
        name
        for name, value in ctx.params.items()
        if value is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    of_message = {"payload", "by_line", *(each.name for each in fields(MessageBuilder))}
    if "json_input" in given and given & of_message:
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


async def _requests(
    chunks: AsyncGenerator[list[bytes], None],
    read: _Read,
    group: Callable[[Iterator[WakuMessageAndTopic]], Iterator[PublishRequest]],
) -> AsyncGenerator[PublishRequest, None]:
    """Yield requests for payloads or lines: those that arrived together, together."""
    async with aclosing(chunks):
        async for chunk in chunks:
            made = (read(each) for each in chunk)
            for request in group(message for message in made if message is not None):
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
                unwanted += outcome_name(result) not in _WANTED
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


@dataclass(kw_only=True)
class MessageBuilder:
    """Makes one message after the other, each with a timestamp of its own.

    ``timestamp_ns`` is the first one's; None: now. With ``channel_id`` they are SDS messages, of
    which the first names ``parents``, and each other one the one before.
    """

    pubsub_topic: str
    content_topic: str
    timestamp_ns: int | None
    meta: bytes | None = None
    ephemeral: bool = False
    channel_id: str | None = None
    sender_id: str = ""
    parents: tuple[Entry, ...] = ()
    message_id: str | None = None
    clock: Callable[[], int] = time.time_ns
    _last_ns: int = -MAX_TIMESTAMP_NS
    _last_lamport: int = 0

    def make(self, payload: bytes) -> WakuMessageAndTopic:
        """Wrap a payload, in an SDS message where a channel is given.

        Raises:
            CliError: It would be no SDS message.
        """
        message_id = ""
        if self.channel_id is not None:
            message_id, payload = self._wrapped(self.channel_id, payload)
        message = new_message(
            payload,
            self.content_topic,
            self.pubsub_topic,
            self._next_timestamp_ns(),
            meta=self.meta,
            ephemeral=self.ephemeral or None,
        )
        if message_id:
            # Without a timestamp it has no hash; the node's answer reports that.
            hint = hash_of(message) if message.message.timestamp else None
            self.parents = ((message_id, hint),)
        return message

    def _next_timestamp_ns(self) -> int:
        wanted_ns = self.clock() if self.timestamp_ns is None else self.timestamp_ns
        # Equal payloads must not become one message.
        self._last_ns = min(max(wanted_ns, self._last_ns + 1), MAX_TIMESTAMP_NS)
        return self._last_ns

    def _wrapped(self, channel_id: str, content: bytes) -> tuple[str, bytes]:
        """Return the ID and the payload of an SDS message; by default its ID is its hash."""
        lamport = self._last_lamport = max(self.clock() // _NS_PER_MS, self._last_lamport + 1)
        names = [parent.encode() for parent, _ in self.parents]
        who = channel_id.encode(), self.sender_id.encode()
        message_id = self.message_id or message_digest(*who, lamport, names, content)
        try:
            return message_id, sds_payload(
                channel_id,
                message_id,
                content,
                sender_id=self.sender_id,
                lamport=lamport,
                parents=self.parents,
            )
        except ValueError as error:
            raise CliError(USAGE, safe(str(error))) from error


def json_reader() -> _Read:
    """Return a reader of the lines that `scan --json` prints.

    It returns None for a blank line and for a cursor, and raises `CliError` for what is no message.
    """
    numbers = count(1)

    def read(line: bytes) -> WakuMessageAndTopic | None:
        number = next(numbers)
        if not line.strip():
            return None
        try:
            value = json.loads(line)
            is_cursor = isinstance(value, dict) and _CURSOR_KEYS & value.keys()
            return None if is_cursor else message_from_plain(value)
        except (ValueError, RecursionError) as error:
            is_field = isinstance(error, ArgumentError)
            cause = safe(str(error)) if is_field else "it is not JSON in UTF-8"
            raise CliError(FAILED, f"Line {number} of the input is no message: {cause}.") from error

    return read
