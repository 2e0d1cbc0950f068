"""`storenode get`: SDS messages by ID."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from storenode.cli.client.completeness import coverage_option, tell
from storenode.cli.client.output import note
from storenode.cli.client.session import ENTRY, HEX, Session, connected, topic_options
from storenode.cli.client.walks import missing_note, print_page
from storenode.cli.errors import OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import Entry, content_filter

if TYPE_CHECKING:
    from storenode.client.types import AnswerCoverage


@click.command(cls=LayeredCommand)
@click.argument("entries", nargs=-1, required=True, type=ENTRY, metavar="ID[@HINT]...")
@option("--channel", required=True, metavar="CHANNEL", help="The channel of the IDs.")
@option("--hint", type=HEX, help="Retrieval hint, a message hash; only with a single ID.")
@coverage_option
@topic_options
@connected()
async def get(
    session: Session,
    *,
    entries: tuple[Entry, ...],
    channel: str,
    hint: bytes | None,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    with_coverage: bool,
) -> int:
    """Fetch SDS messages by their IDs, and list those that the node does not hold."""
    pages = session.client.get_sds(
        channel,
        _hinted(entries, hint),
        filter=content_filter(pubsub_topic, content_topics),
        coverage=with_coverage,
    )
    missing, truncated = 0, False
    said: list[AnswerCoverage] = []
    async with aclosing(pages):
        async for page in pages:
            missing += print_page(session.out, page)
            truncated |= page.truncated
            if page.HasField("coverage"):
                said.append(page.coverage)
    if truncated:
        note("An ID has more messages than are returned: give their hashes as hints.")
    missing_note(missing)
    if with_coverage:
        tell(session.out, said)
    return OK


def _hinted(entries: tuple[Entry, ...], hint: bytes | None) -> tuple[Entry, ...]:
    if hint is None:
        return entries
    if len(entries) != 1 or entries[0][1] is not None:
        raise click.UsageError("--hint goes with a single ID: write several as ID@HINT.")
    return ((entries[0][0], hint),)
