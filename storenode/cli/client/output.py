"""What the client commands print: a line for people, or one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storenode.cli.client.text import format_time, preview, safe, short
from storenode.cli.errors import FAILED, CliError
from storenode.client.plain import to_json
from storenode.client.sds_messages import sds_view

if TYPE_CHECKING:
    from storenode.client.types import Message, SdsStoredMessage, WakuMessageKeyValue


class Output:
    """Standard output in one of two shapes; ``as_json`` says which.

    Raises `BrokenPipeError` from any method when the reader has left, `CliError` when the output
    cannot be written.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._encoding = sys.stdout.encoding or "utf-8"

    def line(self, text: str) -> None:
        """Print one line; what does not print, or the terminal's encoding lacks, is escaped."""
        self.shown(safe(text))

    def shown(self, text: str) -> None:
        """Print lines of text that may be printed; what the encoding lacks is escaped."""
        try:
            sys.stdout.buffer.write(text.encode(self._encoding, "backslashreplace") + b"\n")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _not_written(error) from error

    def flush(self) -> None:
        """Hand all lines to the reader."""
        try:
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _not_written(error) from error

    def json(self, value: Mapping[str, Any]) -> None:
        """Print one JSON object, in ASCII without control characters."""
        self.shown(_printing(json.dumps(value)))

    def message(self, message: Message) -> None:
        """Print any message of the schema as JSON."""
        self.shown(_printing(to_json(message)))

    def stored(self, items: Sequence[WakuMessageKeyValue]) -> None:
        """Print stored messages, or the hashes of those that came without data."""
        if items:
            text_of = to_json if self.as_json else _stored_text
            text = "\n".join(map(text_of, items))
            self.shown(_printing(text) if self.as_json else text)

    def sds(self, item: SdsStoredMessage, *, data: bool = True) -> None:
        """Print a stored SDS message, or with ``data`` false only its entry."""
        if not data:
            item.ClearField("stored")
        if self.as_json:
            self.message(item)
        else:
            self.line(_sds_line(item))

    def cursor(self, name: str, cursor: bytes, **more: object) -> None:
        """Print where to go on from."""
        if self.as_json:
            self.json({name: cursor.hex(), **more})
        else:
            self.line(f"cursor: {cursor.hex()}")


def note(text: str) -> None:
    """Print a remark on standard error."""
    sys.stdout.flush()
    print(safe(text), file=sys.stderr, flush=True)


def _printing(text: str) -> str:
    """What the encoder of JSON leaves as it is: DEL, which is ASCII and no printing character."""
    return text.replace("\x7f", "\\u007f")


def _stored_text(item: WakuMessageKeyValue) -> str:
    if not item.HasField("message"):
        return item.message_hash.hex()
    message = item.message
    return (
        f"{format_time(message.timestamp)}  {short(item.message_hash)}  "
        f"{safe(message.content_topic)}  {_content(message.payload)}"
    )


def _sds_line(item: SdsStoredMessage) -> str:
    name, digest = safe(item.entry.message_id), short(item.entry.retrieval_hint)
    if not item.HasField("stored"):
        return f"{digest}  {name}"
    message = item.stored.message
    view = sds_view(message.payload)
    # A message found by its hint alone may be encrypted.
    said = (
        preview(message.payload)
        if view is None
        else f"{_sender(view.sender_id)}{preview(view.content)}"
    )
    return f"{format_time(message.timestamp)}  {digest}  {name}  {said}"


def _content(payload: bytes) -> str:
    view = sds_view(payload)
    if view is None:
        return preview(payload)
    return f"[{safe(view.message_id)}] {_sender(view.sender_id)}{preview(view.content)}"


def _sender(sender_id: str) -> str:
    return f"{safe(sender_id)}: " if sender_id else ""


def _not_written(error: OSError) -> CliError:
    return CliError(FAILED, f"The output could not be written ({error.strerror}).")
