"""`storenode query`, `scan` and `follow`: stored messages, page by page."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from storenode.cli.client.coverage import with_coverage
from storenode.cli.client.output import Output
from storenode.cli.client.session import (
    COUNT,
    HASH,
    HEX,
    CommandSession,
    connected,
    filter_option,
    time_options,
    topic_options,
)
from storenode.cli.client.text import note
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option, with_options
from storenode.client.messages import query_request

if TYPE_CHECKING:
    from storenode.client.types import FollowPage, ScanPage

_page: Final = partial(option, section="Page")
_stream: Final = partial(option, section="Stream")


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@filter_option(
    "--hash",
    "message_hashes",
    multiple=True,
    type=HASH,
    help="The message with this hash; may be repeated, and excludes the other filters.",
)
@_page(
    "--forward/--backward",
    "pagination_forward",
    default=False,
    help="Start with the oldest match, or with the newest.  [default: backward]",
)
@_page("--cursor", "pagination_cursor", type=HASH, help="Continue after this message hash.")
@_page("--limit", "pagination_limit", type=COUNT, help="Messages per page: 100, at most 1,000.")
@_page("--all", "every_page", is_flag=True, help="Fetch all pages, not only one.")
@_page("--no-data", is_flag=True, help="Print only hashes, to see which messages the node stores.")
@_page("--cursors", is_flag=True, help="Print the cursor of the next page, if there is one.")
@connected(has_payloads=True)
@with_coverage
async def query(
    session: CommandSession,
    *,
    every_page: bool,
    no_data: bool,
    cursors: bool,
    **asked: Any,  # noqa: ANN401 - the other fields of the request
) -> int:
    """Fetch stored messages by topic and time, or by hash.

    The messages of a page are in ascending order of time, in either direction. The exit code is 1
    if the node does not store a message that is given by its hash.
    """
    request = query_request(include_data=not no_data, **asked)
    missing = dict.fromkeys(asked["message_hashes"])
    every_page |= bool(missing)
    async with aclosing(session.client.query_pages(request)) as pages:
        async for page in pages:
            session.out.stored(page.messages)
            for item in page.messages:
                missing.pop(item.message_hash, None)
            if page.HasField("coverage"):
                session.coverage.append(page.coverage)
            more = page.HasField("pagination_cursor")
            if more and cursors:
                session.out.cursor("pagination_cursor", page.pagination_cursor)
            if not every_page:
                if more and not cursors and not session.out.as_json:
                    note(f"More match: add --cursor {page.pagination_cursor.hex()} or --all.")
                break
    if missing:
        note(f"Not held: {', '.join(digest.hex() for digest in missing)}.")
    return FAILED if missing else OK


@dataclass
class _PagePrinter:
    """A printer of pages, up to a number of messages; ``resume`` is the last page's cursor."""

    out: Output
    left: int | None
    cursors: bool
    resume: bytes = b""

    def show(self, page: ScanPage | FollowPage, **more: object) -> bool:
        """Print a page, and return True if the limit is reached."""
        self.out.stored(page.messages[: self.left])
        # The cursor of a page that is cut short would skip the rest of it.
        if self.left is None or len(page.messages) <= self.left:
            self.resume = page.cursor
            if self.cursors:
                self.out.cursor("cursor", page.cursor, **more)
        self.out.flush()
        if self.left is not None:
            self.left -= len(page.messages)
        return self.left is not None and self.left <= 0


_stream_options = with_options(
    _stream(
        "--cursor",
        type=HEX,
        help="Continue after the page with this cursor, at any node on the same database.",
    ),
    _stream("--limit", type=click.IntRange(min=1), help="Stop after N messages."),
    _stream("--no-data", is_flag=True, help="Print only hashes."),
    _stream("--cursors", is_flag=True, help="Print the cursor after every page."),
)


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@_stream_options
@_stream(
    "--page-size",
    type=COUNT,
    default=0,
    help="Messages per page.  [default: the node's choice]",
)
@connected(has_payloads=True, has_filter=True)
@with_coverage
async def scan(
    session: CommandSession,
    *,
    cursor: bytes | None,
    limit: int | None,
    no_data: bool,
    cursors: bool,
    **asked: Any,  # noqa: ANN401 - further arguments of the call
) -> int:
    """Stream every stored message that matches, the oldest first.

    After a short outage of the node it reconnects and continues.
    """
    pages = session.client.scan(include_data=not no_data, cursor=cursor or b"", **asked)
    printer = _PagePrinter(session.out, limit, cursors)
    async with aclosing(pages):
        async for page in pages:
            if page.HasField("coverage"):
                session.coverage.append(page.coverage)
            elif printer.show(page):
                break
    return OK


@click.command(cls=LayeredCommand)
@topic_options
@_stream_options
@_stream(
    "--from-beginning",
    is_flag=True,
    help="Start with everything the node stores, not with new messages.",
)
@_stream("--until-live", is_flag=True, help="Stop when the backlog is exhausted.")
@connected(interrupt_ends=True, has_payloads=True, has_filter=True)
async def follow(
    session: CommandSession,
    *,
    cursor: bytes | None,
    limit: int | None,
    until_live: bool,
    no_data: bool,
    cursors: bool,
    **asked: Any,  # noqa: ANN401 - further arguments of the call
) -> int:
    """Stream messages in the order in which they were stored, and continue as they arrive.

    Ctrl-C ends it. After a short outage of the node it reconnects and continues; no message is
    missed or printed twice. Each message is printed as soon as it arrives.
    """
    pages = session.client.follow(cursor=cursor or b"", include_data=not no_data, **asked)
    printer = _PagePrinter(session.out, limit, cursors)
    try:
        async with aclosing(pages):
            async for page in pages:
                if printer.show(page, live=page.live) or (until_live and page.live):
                    break
    finally:
        if printer.resume and not cursors and not session.out.as_json:
            note(f"To go on from here: --cursor {printer.resume.hex()}")
    return OK
