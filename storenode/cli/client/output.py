"""The output of the client commands: a line for people, or one JSON object a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from storenode.cli.client.text import counted, format_time, note, preview, safe
from storenode.client.plain import to_json, to_plain
from storenode.client.sds_messages import SdsView, sds_view
from storenode.common.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from storenode.client.types import Message, SdsStoredMessage, WakuMessageKeyValue

PROGRESS_INTERVAL_S: Final = 1.0
PROGRESS_COLUMNS: Final = 60
"""The width of the progress, which a shorter one after it overwrites."""

_LABEL_CHARS: Final = 10
_NOT_VERIFIED: Final = "not verified"
_FORGED: Final = "FORGED"
_MAX_PROVEN: Final = 10_000
"""IDs of proven messages that one call remembers, to call others that claim them forged."""


class Output:
    """Standard output as lines for people (``table``), lines of JSON, or ``raw`` payloads.

    Raises `OSError` from any method when the output cannot be written, `BrokenPipeError` when the
    reader has left.
    """

    def __init__(self, shape: str = "table") -> None:
        self.as_json = shape == "json"
        self._is_raw = shape == "raw"
        self._printed = 0
        self._shown_s = time.monotonic()
        self._shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
        self._proven = BoundedDict[str, None](_MAX_PROVEN)
        self._encoding = sys.stdout.encoding or "utf-8"

    def line(self, text: str) -> None:
        """Print one line; what does not print, or the terminal's encoding lacks, is escaped.

        Beside raw payloads, a line is a remark.
        """
        if self._is_raw:
            note(text)
        else:
            self.shown(safe(text))

    def shown(self, text: str) -> None:
        """Print lines of text that may be printed; what the encoding lacks is escaped."""
        self._write(text.encode(self._encoding, "backslashreplace") + b"\n")

    def _write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)

    def progress(self, items: Sequence[WakuMessageKeyValue]) -> None:
        """Report on a terminal how far an answer has come whose lines go elsewhere."""
        self._printed += len(items)
        now_s = time.monotonic()
        if self._shows_progress and items and now_s - self._shown_s >= PROGRESS_INTERVAL_S:
            self._shown_s = now_s
            newest = items[-1].message
            reached = f", up to {format_time(newest.timestamp)}" if newest.timestamp else ""
            text = f"{counted(self._printed, 'message')}{reached}"
            note(f"{text:<{PROGRESS_COLUMNS}}", end="\r")

    def flush(self) -> None:
        """Write all lines to the reader."""
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Write all lines to the reader, and clear the progress."""
        self.flush()
        if self._shows_progress:
            note(" " * PROGRESS_COLUMNS, end="\r")

    def json(self, value: Mapping[str, Any]) -> None:
        """Print one JSON object, in ASCII without control characters."""
        self.shown(_printing(json.dumps(value)))

    def record(self, value: Mapping[str, Any], text: str) -> None:
        """Print one thing, as a JSON object or as a line for people."""
        if self.as_json:
            self.json(value)
        else:
            self.line(text)

    def report(self, value: Message | Mapping[str, Any], rows: Iterable[tuple[str, str]]) -> None:
        """Print a report: as one JSON object, or as rows of labels and texts for people."""
        if self.as_json:
            text = json.dumps(value) if isinstance(value, Mapping) else to_json(value)
            self.shown(_printing(text))
        else:
            for label, text in rows:
                self.line(f"{label:<{_LABEL_CHARS}}{text}")

    def stored(self, items: Sequence[WakuMessageKeyValue]) -> None:
        """Print stored messages, or the hashes of those that came without data."""
        self.progress(items)
        if self._is_raw:
            for item in items:
                payload = item.message.payload
                self._write((payload if item.HasField("message") else item.message_hash) + b"\n")
        elif items:
            text_of = to_json if self.as_json else _stored_text
            text = "\n".join(map(text_of, items))
            self.shown(_printing(text) if self.as_json else text)

    def sds(self, items: Sequence[SdsStoredMessage], *, data: bool = True) -> None:
        """Print a page of stored SDS messages, or with ``data`` false only their entries.

        What its ID does not prove is called forged beside or after a message that the ID proves.
        """
        views = [sds_view(item.stored.message.payload) if data else None for item in items]
        for place, (item, view) in enumerate(zip(items, views, strict=True)):
            if view is not None and view.message_id != item.entry.message_id:
                views[place] = replace(view, proven=False)  # it is for another ID
            elif view is not None and view.proven:
                self._proven[item.entry.message_id] = None
        for item, view in zip(items, views, strict=True):
            if not data:
                item.ClearField("stored")
            if self._is_raw:
                self._write((item.stored.message.payload if view is None else view.content) + b"\n")
            elif self.as_json:
                self.json({**to_plain(item), **({} if view is None else {"proven": view.proven})})
            else:
                is_forged = item.entry.message_id in self._proven
                self.line(_sds_line(item, view, _FORGED if is_forged else _NOT_VERIFIED))

    def cursor(self, name: str, cursor: bytes, **more: object) -> None:
        """Print where to continue from."""
        self.record({name: cursor.hex(), **more}, f"cursor: {cursor.hex()}")


def _printing(text: str) -> str:
    """Escape DEL, the only control character that the encoder of JSON leaves as it is."""
    return text.replace("\x7f", "\\u007f")


def _stored_text(item: WakuMessageKeyValue) -> str:
    if not item.HasField("message"):
        return item.message_hash.hex()
    message = item.message
    return (
        f"{format_time(message.timestamp)}  {item.message_hash.hex()}  "
        f"{safe(message.content_topic)}  {_content(message.payload)}"
    )


def _sds_line(item: SdsStoredMessage, view: SdsView | None, unproven: str) -> str:
    name, digest = safe(item.entry.message_id), item.entry.retrieval_hint.hex()
    if not item.HasField("stored"):
        return f"{digest}  {name}"
    message = item.stored.message
    # A message found by its hint alone may be encrypted.
    text = preview(message.payload) if view is None else _sds_text(view, unproven)
    return f"{format_time(message.timestamp)}  {digest}  {name}  {text}"


def _content(payload: bytes) -> str:
    view = sds_view(payload)
    if view is None:
        return preview(payload)
    return f"[{safe(view.message_id)}] {_sds_text(view, _NOT_VERIFIED)}"


def _sds_text(view: SdsView, unproven: str) -> str:
    """Format sender and content, and whether the ID proves them."""
    sender = f"{safe(view.sender_id)}: " if view.sender_id else ""
    mark = f"  ({unproven})" if view.content and not view.proven else ""
    return f"{sender}{preview(view.content)}{mark}"
