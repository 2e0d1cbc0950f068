"""`storenode get` and `storenode causal-history`: SDS messages by ID, and what they depend on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from storenode.cli.client.coverage import with_coverage
from storenode.cli.client.session import COUNT, ENTRY, CommandSession, connected, topic_options
from storenode.cli.client.text import note
from storenode.cli.errors import FAILED, OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import Entry
from storenode.client.plain import to_plain

if TYPE_CHECKING:
    from storenode.client.types import CausalHistoryPage, SdsMessagesPage

_walk: Final = partial(option, section="Walk")


@click.command(cls=LayeredCommand)
@click.argument("entries", nargs=-1, required=True, type=ENTRY, metavar="ID[@HINT]...")
@option("--channel", required=True, metavar="CHANNEL", help="The channel of the IDs.")
@topic_options
@connected(has_payloads=True, has_filter=True)
@with_coverage
async def get(
    session: CommandSession,
    *,
    entries: tuple[Entry, ...],
    channel: str,
    **asked: Any,  # noqa: ANN401 - further arguments of the call
) -> int:
    """Fetch SDS messages by their IDs, and list those that the node does not store.

    The exit code is 1 if one of them is missing.
    """
    pages = session.client.get_sds(channel, entries, **asked)
    truncated = "An ID has more messages than are returned: give their hashes as hints."
    missing = await _print_pages(session, pages, truncated)
    return FAILED if missing else OK


@click.command("causal-history", cls=LayeredCommand)
@click.argument("heads", nargs=-1, required=True, type=ENTRY, metavar="HEAD[@HINT]...")
@option("--channel", required=True, metavar="CHANNEL", help="The channel of the heads.")
@_walk(
    "--known",
    "known_ids",
    multiple=True,
    metavar="ID",
    help="An ID that you have already: it is not sent, and the walk ends there; may be repeated.",
)
@_walk(
    "--max-messages",
    type=COUNT,
    default=0,
    help="Stop after N messages, those nearest to the heads.  [default: the node's limit]",
)
@_walk(
    "--max-depth",
    type=COUNT,
    default=0,
    help="Walk at most N generations back.  [default: unlimited]",
)
@_walk("--no-data", is_flag=True, help="Print only IDs and hashes.")
@topic_options
@connected(has_payloads=True, has_filter=True)
@with_coverage
async def causal_history(
    session: CommandSession,
    *,
    heads: tuple[Entry, ...],
    channel: str,
    no_data: bool,
    **asked: Any,  # noqa: ANN401 - further arguments of the call
) -> int:
    """Fetch everything that some SDS messages depend on, parents before children.

    Messages that the history references and the node does not store are listed as missing. The exit
    code is 1 if a head is missing.
    """
    pages = session.client.causal_history(channel, heads, **asked)
    truncated = "A limit ended the walk: ask again with the missing parents of what came as heads."
    missing = await _print_pages(session, pages, truncated, data=not no_data)
    return FAILED if missing & {name for name, _ in heads} else OK


async def _print_pages(
    session: CommandSession,
    pages: AsyncGenerator[SdsMessagesPage] | AsyncGenerator[CausalHistoryPage],
    truncated_note: str,
    *,
    data: bool = True,
) -> set[str]:
    """Print messages and return the IDs of those that the node lacks; remarks go to standard error.

    ``truncated_note`` says what to do where the node has left messages out.
    """
    out, missing = session.out, list[str]()
    truncated = False
    async with aclosing(pages):
        async for page in pages:
            out.sds(page.messages, data=data)
            for entry in page.missing:
                hint = f"  {entry.retrieval_hint.hex()}" if entry.HasField("retrieval_hint") else ""
                out.record({"missing": to_plain(entry)}, f"missing: {entry.message_id}{hint}")
            missing += [entry.message_id for entry in page.missing]
            if page.truncated and out.as_json:
                out.json({"truncated": True})
            truncated |= page.truncated
            if page.HasField("coverage"):
                session.coverage.append(page.coverage)
    if truncated:
        note(truncated_note)
    if missing:
        noun = "message is" if len(missing) == 1 else "messages are"
        note(f"{len(missing)} {noun} missing: this node does not hold what is listed as missing.")
    return set(missing)
