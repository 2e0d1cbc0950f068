"""`storenode scan`: everything that matches, in order of time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from storenode.cli.client.completeness import coverage_option, tell
from storenode.cli.client.session import HEX, CommandSession, connected, time_options, topic_options
from storenode.cli.errors import OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import content_filter

if TYPE_CHECKING:
    from storenode.client.types import AnswerCoverage

_STREAM = "Stream"


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@option("--cursor", type=HEX, section=_STREAM, help="Continue after the page with this cursor.")
@option("--limit", type=click.IntRange(min=1), section=_STREAM, help="Stop after N messages.")
@option(
    "--page-size",
    type=click.IntRange(min=0),
    default=0,
    section=_STREAM,
    help="Messages per page.  [default: the node's choice]",
)
@option("--no-data", is_flag=True, section=_STREAM, help="Print only hashes.")
@option("--cursors", is_flag=True, section=_STREAM, help="Print the cursor after every page.")
@coverage_option
@connected(has_payloads=True)
async def scan(
    session: CommandSession,
    *,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    time_start: int | None,
    time_end: int | None,
    cursor: bytes | None,
    limit: int | None,
    page_size: int,
    no_data: bool,
    cursors: bool,
    with_coverage: bool,
) -> int:
    """Stream every stored message that matches, the oldest first.

    After a short outage of the node it reconnects and continues.
    """
    pages = session.client.scan(
        filter=content_filter(pubsub_topic, content_topics),
        time_start=time_start,
        time_end=time_end,
        include_data=not no_data,
        cursor=cursor or b"",
        page_size=page_size,
        coverage=with_coverage,
    )
    left = limit
    said: list[AnswerCoverage] = []
    async with aclosing(pages):
        async for page in pages:
            if page.HasField("coverage"):
                said.append(page.coverage)
                continue
            session.out.stored(page.messages[:left])
            # A page cut short has no cursor of its own: going on from it would skip the rest.
            if cursors and (left is None or len(page.messages) <= left):
                session.out.cursor("cursor", page.cursor)
            if left is not None:
                left -= len(page.messages)
                if left <= 0:
                    break
    if with_coverage:
        tell(session.out, said)
    return OK
