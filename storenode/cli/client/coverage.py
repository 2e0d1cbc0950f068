"""`storenode coverage`: what a store holds by hour or day, and what others were found to hold."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import click

from storenode.cli.client.session import CommandSession, connected, time_options, topic_options
from storenode.cli.client.text import counted, format_time, safe
from storenode.cli.errors import OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.node import content_filter
from storenode.client.types import CoverageStep, StoreCoverage

_INTAKE: Final = {
    CoverageStep.RESUMED: ", in part resumed from a peer",
    CoverageStep.OFFLINE: ", not online all the time",
    CoverageStep.NEVER: ", before this store was first online",
}


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@option("--by-day", is_flag=True, help="Steps of one day.  [default: one hour]")
@option(
    "--channel",
    metavar="CHANNEL",
    help="SDS channel: count the parents that its messages reference and the store lacks.",
)
@connected()
async def coverage(
    session: CommandSession,
    *,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    time_start: int | None,
    time_end: int | None,
    by_day: bool,
    channel: str | None,
) -> int:
    """Show how complete the store is, in steps of time; by default for the last day.

    A store that is `equal` had the same messages in this step as of the time shown, and nothing
    has changed at the node since.
    """
    pages = session.client.coverage(
        filter=content_filter(pubsub_topic, content_topics),
        time_start=time_start,
        time_end=time_end,
        by_day=by_day,
        channel_id=channel or "",
    )
    async with aclosing(pages):
        async for page in pages:
            for step in page.steps:
                if session.out.as_json:
                    session.out.message(step)
                else:
                    session.out.line(_line(step))
    return OK


def _line(step: CoverageStep) -> str:
    stored = "messages not counted"
    if step.HasField("messages"):
        stored = counted(step.messages, "message")
    if step.before_horizon:
        stored += ", before the horizon"
    stored += _INTAKE.get(step.intake, "")
    if step.missing_parents:
        stored += f", {counted(step.missing_parents, 'parent')} missing"
    stores = "; ".join(_store(each) for each in step.stores)
    return f"{format_time(step.time_start)}  {stored}  {stores or 'not confirmed by any store'}"


def _store(store: StoreCoverage) -> str:
    name = safe(store.store_id)
    if store.state == StoreCoverage.EQUAL:
        method = "" if store.keyed else ", by XOR"
        return f"equal to {name} as of {format_time(store.compared_at)}{method}"
    if store.state == StoreCoverage.DIFFERS:
        return f"differs from {name} as of {format_time(store.compared_at)}{_missing(store)}"
    last = f", equal as of {format_time(store.last_equal)}" if store.last_equal else ""
    if store.equal_until:
        return f"equal to {name} up to {format_time(store.equal_until)} only{last}"
    return f"not confirmed by {name} as it is now{last}"


def _missing(store: StoreCoverage) -> str:
    if not store.HasField("missing_here"):
        return ""
    return f" (missing here {store.missing_here:,}, there {store.missing_there:,})"
