"""`storenode coverage`, and `--coverage` of the commands that read messages.

`storenode coverage` prints what a store holds by hour or day, and what others were found to hold.
`--coverage` prints one sentence about an answer, from what the answer itself says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import click

from storenode.cli.client.session import (
    Call,
    CommandSession,
    connected,
    time_options,
    topic_options,
)
from storenode.cli.client.text import counted, format_time, note, safe
from storenode.cli.errors import OK
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.plain import to_plain
from storenode.client.types import AnswerCoverage, CoverageStep, StoreCoverage

_MAX_NAMED: Final = 3

_INTAKE: Final = {
    CoverageStep.RESUMED: ", in part resumed from a peer",
    CoverageStep.OFFLINE: ", not online all the time",
    CoverageStep.NEVER: ", before this store was first online",
}


def with_coverage(call: Call) -> Call:
    """Add the option `--coverage` to a call, and print at its end what the pages reported."""

    @functools.wraps(call)
    async def run(session: CommandSession, *, coverage: bool, **own: Any) -> int:  # noqa: ANN401 - the command's own options
        code = await call(session, coverage=coverage, **own)
        if coverage and session.out.as_json:
            for each in session.coverage:
                session.out.json({"coverage": to_plain(each)})
        if coverage:
            note(sentence(session.coverage))
        return code

    return option(
        "--coverage",
        is_flag=True,
        help="Report on standard error how complete the answer is, as far as other stores know.",
    )(run)


@click.command(cls=LayeredCommand)
@topic_options
@time_options
@option("--by-day", is_flag=True, help="Steps of one day.  [default: one hour]")
@option(
    "--channel",
    metavar="CHANNEL",
    help="SDS channel: count the parents that its messages reference and the store lacks.",
)
@connected(has_filter=True)
async def coverage(
    session: CommandSession,
    *,
    channel: str | None,
    **asked: Any,  # noqa: ANN401 - further arguments of the call
) -> int:
    """Show how complete the store is, in steps of time; by default for the last day.

    A store that is `equal` had the same messages in this step as of the time shown, and nothing
    has changed at the node since.
    """
    pages = session.client.coverage(channel_id=channel or "", **asked)
    async with aclosing(pages):
        async for page in pages:
            for step in page.steps:
                session.out.record(to_plain(step), _line(step))
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


_WORST_LAST: Final = (
    AnswerCoverage.COMPLETE,
    AnswerCoverage.PARTIAL,
    AnswerCoverage.UNCONFIRMED,
    AnswerCoverage.INCOMPLETE,
)


def sentence(answers: Sequence[AnswerCoverage]) -> str:
    """Describe how complete an answer is: as complete as its least complete page."""
    if not answers:
        return "Coverage: unknown: the node says nothing about this answer."
    worst = max(answers, key=lambda each: _rank(each.state))
    reason = safe(worst.reason) or "the node does not say why"
    if worst.state == AnswerCoverage.INCOMPLETE:
        as_of, names = format_time(worst.compared_at), _list_stores(set(worst.store_ids))
        return f"Coverage: incomplete as of {as_of}: {reason}: {names}; see storenode coverage."
    if worst.state not in (AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL):
        return f"Coverage: not confirmed: {reason}."
    common = set(worst.store_ids).intersection(*(each.store_ids for each in answers))
    stores = _list_stores(common or {name for each in answers for name in each.store_ids})
    as_of = format_time(min(each.compared_at for each in answers))
    method = "" if all(each.keyed for each in answers) else ", by XOR"
    known = f"as far as {stores} knew as of {as_of}{method}"
    if not common:
        known = f"on each page {known}"
    if worst.state == AnswerCoverage.COMPLETE:
        return f"Coverage: complete {known}."
    begins, ends = format_time(worst.complete_from), format_time(worst.complete_until)
    return f"Coverage: complete from {begins} up to {ends} {known}; {reason}."


def _rank(state: AnswerCoverage.State.ValueType) -> int:
    # A state that a newer node added confirms nothing.
    return _WORST_LAST.index(state if state in _WORST_LAST else AnswerCoverage.UNCONFIRMED)


def _list_stores(stores: set[str]) -> str:
    names = [safe(name) for name in sorted(stores)]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return f"{counted(len(names), 'store')} ({', '.join(names[:_MAX_NAMED])}{more})"
