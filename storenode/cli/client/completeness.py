"""`--coverage`: one sentence about how complete an answer is, from what the answer itself says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from storenode.cli.client.text import counted, format_time, note, safe
from storenode.cli.options.layers import option
from storenode.client.plain import to_plain
from storenode.client.types import AnswerCoverage

if TYPE_CHECKING:
    from storenode.cli.client.output import Output

_MAX_NAMED: Final = 3

coverage_option = option(
    "--coverage",
    "with_coverage",
    is_flag=True,
    help="Report on standard error how complete the answer is, as far as other stores know.",
)


def tell(out: Output, said: Sequence[AnswerCoverage]) -> None:
    """Print what the pages of an answer say; with JSON, the statements on standard output too."""
    if out.as_json:
        for each in said:
            out.json({"coverage": to_plain(each)})
    note(sentence(said))


def sentence(said: Sequence[AnswerCoverage]) -> str:
    """Describe how complete an answer is; each of its pages states that of its own messages."""
    if not said:
        return "Coverage: unknown: the node says nothing about this answer."
    lacking = [each for each in said if each.state == AnswerCoverage.INCOMPLETE]
    if lacking:
        as_of = format_time(min(each.compared_at for each in lacking))
        names = _names({name for each in lacking for name in each.store_ids})
        reason = safe(lacking[0].reason)
        return f"Coverage: incomplete as of {as_of}: {reason}: {names}; see storenode coverage."
    run = _longest_run(said)
    reason = next((safe(each.reason) for each in said if each.reason), "")
    if not run:
        return f"Coverage: not confirmed: {reason or 'the node does not say why'}."
    known = _known(run)
    if all(each.state == AnswerCoverage.COMPLETE for each in said):
        return f"Coverage: complete {known}."
    begins, ends = (format_time(each) for each in _ends(run))
    whole_start = run[0].complete_from == min(each.time_start for each in said)
    since = "" if whole_start else f"from {begins} "
    return f"Coverage: complete {since}up to {ends} {known}; {reason}."


def _longest_run(said: Sequence[AnswerCoverage]) -> list[AnswerCoverage]:
    """Return the pages that cover the longest time without a gap; they overlap at their cursors."""
    states = {AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL}
    runs: list[list[AnswerCoverage]] = []
    confirmed = [each for each in said if each.state in states]
    for each in sorted(confirmed, key=lambda each: each.complete_from):
        if runs and each.complete_from < _ends(runs[-1])[1]:
            runs[-1].append(each)
        else:
            runs.append([each])
    return max(runs, key=lambda run: _ends(run)[1] - _ends(run)[0], default=[])


def _ends(run: Sequence[AnswerCoverage]) -> tuple[int, int]:
    return run[0].complete_from, max(each.complete_until for each in run)


def _known(run: Sequence[AnswerCoverage]) -> str:
    """Describe which stores were compared, those of all pages."""
    common = set(run[0].store_ids).intersection(*(each.store_ids for each in run))
    every = {name for each in run for name in each.store_ids}
    as_of = format_time(min(each.compared_at for each in run))
    method = "" if all(each.keyed for each in run) else ", by XOR"
    each_page = "" if common else "on each page "
    return f"{each_page}as far as {_names(common or every)} knew as of {as_of}{method}"


def _names(stores: set[str]) -> str:
    names = [safe(name) for name in sorted(stores)]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return f"{counted(len(names), 'store')} ({', '.join(names[:_MAX_NAMED])}{more})"
