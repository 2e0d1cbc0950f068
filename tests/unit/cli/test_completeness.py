"""The sentence of ``--coverage``: never more than the pages of an answer say."""

from __future__ import annotations

from storenode.cli.client.completeness import sentence
from storenode.client.types import AnswerCoverage

HOUR = 3_600_000_000_000
DROPPED = "messages before the horizon of this store may have been dropped"


def complete(
    start: int, end: int, *stores: str, compared: int = 5 * HOUR, keyed: bool = True
) -> AnswerCoverage:
    return AnswerCoverage(
        state=AnswerCoverage.COMPLETE,
        store_ids=stores or ("b",),
        compared_at=compared,
        complete_from=start,
        complete_until=end,
        keyed=keyed,
        time_start=start,
        time_end=end,
    )


def partial(start: int, end: int, since: int, until: int, reason: str) -> AnswerCoverage:
    said = complete(start, end)
    said.MergeFrom(
        AnswerCoverage(
            state=AnswerCoverage.PARTIAL, reason=reason, complete_from=since, complete_until=until
        )
    )
    return said


def unknown(start: int, end: int, reason: str) -> AnswerCoverage:
    return AnswerCoverage(
        state=AnswerCoverage.UNCONFIRMED, reason=reason, time_start=start, time_end=end
    )


def test_complete_pages_are_complete_as_of_the_earliest_comparison() -> None:
    pages = [complete(HOUR, 2 * HOUR), complete(0, HOUR + 1, "b", "c", compared=4 * HOUR)]
    reported = "complete as far as 1 store (b) knew as of 1970-01-01T04:00:00.000Z."
    assert sentence(pages) == f"Coverage: {reported}"


def test_pages_without_overlap_do_not_join() -> None:
    pages = [complete(0, HOUR), unknown(HOUR - 1, 2 * HOUR, "why"), complete(2 * HOUR, 4 * HOUR)]
    assert "up to 1970-01-01T04:00:00.000Z" in sentence(pages)
    assert "from 1970-01-01T02:00:00.000Z" in sentence(pages)
    assert sentence(pages).endswith("; why.")
    joined = [complete(0, HOUR + 1), partial(HOUR, 2 * HOUR, HOUR, HOUR + HOUR // 2, "why")]
    assert "complete up to 1970-01-01T01:30:00.000Z as far as" in sentence(joined)


def test_a_horizon_within_the_time_is_reported() -> None:
    reported = sentence([partial(0, 2 * HOUR, HOUR, 2 * HOUR, DROPPED)])
    assert "from 1970-01-01T01:00:00.000Z up to 1970-01-01T02:00:00.000Z" in reported
    assert reported.endswith(f"; {DROPPED}.")


def test_one_difference_outweighs_pages_that_are_complete() -> None:
    lacking = AnswerCoverage(
        state=AnswerCoverage.INCOMPLETE,
        reason="this store lacked messages",
        store_ids=["c\x1b"],
        compared_at=3 * HOUR,
    )
    reported = sentence([complete(0, HOUR), lacking])
    assert reported.startswith(
        "Coverage: incomplete as of 1970-01-01T03:00:00.000Z: this store lacked"
    )
    assert "1 store (c" in reported
    assert "\x1b" not in reported


def test_xor_alone_is_reported_and_many_stores_are_counted() -> None:
    reported = sentence([complete(0, HOUR, *"abcde", keyed=False)])
    assert "5 stores (a, b, c and 2 more)" in reported
    assert reported.endswith(", by XOR.")


def test_without_any_knowledge_nothing_is_claimed() -> None:
    assert sentence([]) == "Coverage: unknown: the node says nothing about this answer."
    assert sentence([unknown(0, 1, "why")]) == "Coverage: not confirmed: why."
