"""`storenode follow`: messages in the order of their commits, then live."""

from __future__ import annotations

from contextlib import aclosing

import click

from storenode.cli.client.session import HEX, CommandSession, connected, topic_options
from storenode.cli.client.text import note
from storenode.cli.errors import OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import content_filter

_STREAM = "Stream"


@click.command(cls=LayeredCommand)
@topic_options
@option(
    "--cursor",
    type=HEX,
    section=_STREAM,
    help="Continue after the page with this cursor, at any node on the same database.",
)
@option(
    "--from-beginning",
    is_flag=True,
    section=_STREAM,
    help="Start with everything the node stores, not with new messages.",
)
@option("--limit", type=click.IntRange(min=1), section=_STREAM, help="Stop after N messages.")
@option("--until-live", is_flag=True, section=_STREAM, help="Stop when the backlog is exhausted.")
@option("--no-data", is_flag=True, section=_STREAM, help="Print only hashes.")
@option("--cursors", is_flag=True, section=_STREAM, help="Print the cursor after every page.")
@connected(interrupt_ends=True, has_payloads=True)
async def follow(
    session: CommandSession,
    *,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    cursor: bytes | None,
    from_beginning: bool,
    limit: int | None,
    until_live: bool,
    no_data: bool,
    cursors: bool,
) -> int:
    """Stream messages in the order in which they were stored, and go on as they arrive.

    Ctrl-C ends it. After a short outage of the node it reconnects and continues; no message is
    missed or printed twice. Each message is printed as soon as it arrives.
    """
    pages = session.client.follow(
        filter=content_filter(pubsub_topic, content_topics),
        cursor=cursor or b"",
        from_beginning=from_beginning,
        include_data=not no_data,
    )
    left, resume = limit, b""
    try:
        async with aclosing(pages):
            async for page in pages:
                session.out.stored(page.messages[:left])
                if left is None or len(page.messages) <= left:
                    # Ahead of a page cut short, since its own cursor would skip the rest of it.
                    resume = page.cursor
                    if cursors:
                        session.out.cursor("cursor", page.cursor, live=page.live)
                session.out.flush()
                if left is not None:
                    left -= len(page.messages)
                    if left <= 0:
                        break
                if until_live and page.live:
                    break
    finally:
        if resume and not cursors and not session.out.as_json:
            note(f"To go on from here: --cursor {resume.hex()}")
    return OK
