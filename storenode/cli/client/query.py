"""`storenode query`: pages of 13/WAKU2-STORE."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from storenode.cli.client.completeness import coverage_option, tell
from storenode.cli.client.session import HEX, CommandSession, connected, time_options, topic_options
from storenode.cli.client.text import note
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.messages import query_request

if TYPE_CHECKING:
    from storenode.client.types import AnswerCoverage

_PAGE = "Page"


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@option(
    "--hash",
    "hashes",
    multiple=True,
    type=HEX,
    section="Filter",
    help="The message with this hash; may be repeated, and excludes the other filters.",
)
@option(
    "--forward/--backward",
    default=False,
    section=_PAGE,
    help="Start with the oldest match, or with the newest.  [default: backward]",
)
@option("--cursor", type=HEX, section=_PAGE, help="Continue after this message hash.")
@option(
    "--limit",
    type=click.IntRange(min=0),
    section=_PAGE,
    help="Messages per page; 100 by default, at most 1,000.",
)
@option("--all", "every_page", is_flag=True, section=_PAGE, help="Fetch all pages, not only one.")
@option(
    "--no-data",
    is_flag=True,
    section=_PAGE,
    help="Print only hashes, to see which messages the node stores.",
)
@option(
    "--cursors",
    is_flag=True,
    section=_PAGE,
    help="Print the cursor of the next page, if there is one.",
)
@coverage_option
@connected(has_payloads=True)
async def query(
    session: CommandSession,
    *,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    time_start: int | None,
    time_end: int | None,
    hashes: tuple[bytes, ...],
    forward: bool,
    cursor: bytes | None,
    limit: int | None,
    every_page: bool,
    no_data: bool,
    cursors: bool,
    with_coverage: bool,
) -> int:
    """Fetch stored messages by topic and time, or by hash.

    The messages of a page are in ascending order of time, in either direction. The exit code is 1
    if the node does not store a message that is given by its hash.
    """
    request = query_request(
        pubsub_topic=pubsub_topic,
        content_topics=content_topics,
        time_start=time_start,
        time_end=time_end,
        message_hashes=hashes,
        forward=forward,
        cursor=cursor,
        limit=limit,
        include_data=not no_data,
        coverage=with_coverage,
    )
    said: list[AnswerCoverage] = []
    missing = dict.fromkeys(hashes)
    async with aclosing(session.client.query_pages(request)) as pages:
        async for page in pages:
            session.out.stored(page.messages)
            for item in page.messages:
                missing.pop(item.message_hash, None)
            if page.HasField("coverage"):
                said.append(page.coverage)
            more = page.HasField("pagination_cursor")
            if more and cursors:
                session.out.cursor("pagination_cursor", page.pagination_cursor)
            if not every_page and not hashes:
                if more and not cursors and not session.out.as_json:
                    note(f"More match: add --cursor {page.pagination_cursor.hex()} or --all.")
                break
    if with_coverage:
        tell(session.out, said)
    if missing:
        note(f"Not held: {', '.join(digest.hex() for digest in missing)}.")
    return FAILED if missing else OK
