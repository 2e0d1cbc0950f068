"""`storenode causal-history`: the causal past of SDS messages."""

from __future__ import annotations

import click

from storenode.cli.client.completeness import coverage_option
from storenode.cli.client.session import ENTRY, Session, connected, topic_options
from storenode.cli.client.walks import print_pages
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import Entry, content_filter

_WALK = "Walk"


@click.command("causal-history", cls=LayeredCommand)
@click.argument("heads", nargs=-1, required=True, type=ENTRY, metavar="HEAD[@HINT]...")
@option("--channel", required=True, metavar="CHANNEL", help="The channel of the heads.")
@option(
    "--known",
    "known_ids",
    multiple=True,
    metavar="ID",
    section=_WALK,
    help="An ID that is held already: not sent, and not walked past; may be repeated.",
)
@option(
    "--max-messages",
    type=click.IntRange(min=0),
    default=0,
    section=_WALK,
    help="End after N messages, those nearest to the heads.  [default: the node's limit]",
)
@option(
    "--max-depth",
    type=click.IntRange(min=0),
    default=0,
    section=_WALK,
    help="Walk at most N generations back.  [default: unlimited]",
)
@option("--no-data", is_flag=True, section=_WALK, help="Print only IDs and hashes.")
@coverage_option
@topic_options
@connected(has_payloads=True)
async def causal_history(
    session: Session,
    *,
    heads: tuple[Entry, ...],
    channel: str,
    known_ids: tuple[str, ...],
    max_messages: int,
    max_depth: int,
    no_data: bool,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    with_coverage: bool,
) -> int:
    """Fetch everything that some SDS messages depend on, parents before children.

    What the history names and the node does not hold is listed as missing. The exit code is 1 when
    a head is.
    """
    pages = session.client.causal_history(
        channel,
        heads,
        known_ids=known_ids,
        max_messages=max_messages,
        max_depth=max_depth,
        filter=content_filter(pubsub_topic, content_topics),
        coverage=with_coverage,
    )
    truncated = "A limit ended the walk: ask again with the missing parents of what came as heads."
    missing = await print_pages(
        session.out, pages, truncated, data=not no_data, with_coverage=with_coverage
    )
    return FAILED if missing & {name for name, _ in heads} else OK
