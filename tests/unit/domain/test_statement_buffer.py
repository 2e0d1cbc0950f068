"""Statements of coverage are written when they change, and read as if they had been."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

from store.domain.coverage import Statement
from store.domain.partitioning import HOUR_NS, MINUTE_NS
from store.sync.coverage import StatementBuffer

SAID = Statement(0, 10, 100, True, 0, 0, 3, bytes(32))


class Written:
    """`Statements` that keep what is written last about each store; a write may take a while."""

    def __init__(self) -> None:
        self.writes, self.meanwhile = 0, list[Awaitable[None]]()
        self.last: dict[str, Sequence[Statement]] = {}

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        del now_ns
        while self.meanwhile:
            await self.meanwhile.pop()
        self.writes += 1
        self.last[store_id] = statements

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        del start_ns, end_ns
        return dict(self.last)


async def test_statements_are_written_when_they_change_or_after_an_hour() -> None:
    buffer = StatementBuffer(written := Written())
    await buffer.note("a", [SAID], 100)
    assert written.writes == 1
    again = replace(SAID, end_ns=20, compared_ns=200)
    await buffer.note("a", [again], MINUTE_NS + 100)
    assert written.writes == 1
    assert await buffer.between(0, 100) == {"a": [again]}
    assert await buffer.between(30, 100) == {"a": [SAID]}, "what was written"
    await buffer.note("b", [SAID], 200)
    assert written.writes == 2
    more = replace(again, count=4)
    await buffer.note("a", [more], MINUTE_NS + 200)
    assert (written.writes, written.last["a"]) == (3, [more])
    last = replace(more, count=5)
    await buffer.note("a", [last], MINUTE_NS + 300)
    assert written.writes == 3, "a minute has not passed"
    later = replace(last, start_ns=20, end_ns=30, compared_ns=300)
    await buffer.note("a", [later], 2 * MINUTE_NS + 200)
    assert (written.writes, written.last["a"]) == (4, [last, later]), "what waited was not lost"
    await buffer.note("a", [later], 2 * MINUTE_NS + HOUR_NS)
    assert written.writes == 4
    await buffer.note("a", [later], 2 * MINUTE_NS + HOUR_NS + 200)
    assert written.writes == 5, "it repeats what was written an hour before"


async def test_what_waits_is_written_at_the_end_and_before_what_it_does_not_touch() -> None:
    buffer = StatementBuffer(written := Written())
    later, more = replace(SAID, compared_ns=200), replace(SAID, start_ns=10, end_ns=20)
    distant = replace(SAID, start_ns=50, end_ns=60)
    await buffer.note("a", [SAID], 100)
    await buffer.note("a", [later], 200)
    written.meanwhile.append(buffer.note("a", [more], 250))
    await buffer.note("a", [distant], 300)
    assert (written.writes, written.last) == (3, {"a": [later, more]})
    await buffer.flush()
    await buffer.flush()
    assert (written.writes, written.last) == (4, {"a": [distant]})
