"""`storenode get`: SDS messages by ID."""

from __future__ import annotations

import click

from storenode.cli.client.completeness import coverage_option
from storenode.cli.client.session import ENTRY, HEX, Session, connected, topic_options
from storenode.cli.client.walks import print_pages
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import Entry, content_filter


@click.command(cls=LayeredCommand)
@click.argument("entries", nargs=-1, required=True, type=ENTRY, metavar="ID[@HINT]...")
@option("--channel", required=True, metavar="CHANNEL", help="The channel of the IDs.")
@option("--hint", type=HEX, help="Retrieval hint, a message hash; only with a single ID.")
@coverage_option
@topic_options
@connected(has_payloads=True)
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
    """Fetch SDS messages by their IDs, and list those that the node does not hold.

    The exit code is 1 when one of them is missing.
    """
    pages = session.client.get_sds(
        channel,
        _hinted(entries, hint),
        filter=content_filter(pubsub_topic, content_topics),
        coverage=with_coverage,
    )
    truncated = "An ID has more messages than are returned: give their hashes as hints."
    missing = await print_pages(session.out, pages, truncated, with_coverage=with_coverage)
    return FAILED if missing else OK


def _hinted(entries: tuple[Entry, ...], hint: bytes | None) -> tuple[Entry, ...]:
    if hint is None:
        return entries
    if len(entries) != 1 or entries[0][1] is not None:
        raise click.UsageError("--hint goes with a single ID: write several as ID@HINT.")
    return ((entries[0][0], hint),)
