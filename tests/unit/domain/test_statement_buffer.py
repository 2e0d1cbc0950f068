"""Statements of coverage are written when they change, and read as if they had been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from store.domain.coverage import Statement
from store.domain.partitioning import HOUR_NS
from store.sync.coverage import StatementBuffer

SAID = Statement(0, 10, 100, True, 0, 0, 3, bytes(32))


class Written:
    """`Statements` that keep what is written last about each store."""

    def __init__(self) -> None:
        self.writes = 0
        self.last: dict[str, Sequence[Statement]] = {}

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        del now_ns
        self.writes += 1
        self.last[store_id] = statements

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        del start_ns, end_ns
        return dict(self.last)


async def test_a_statement_is_written_when_it_changes_or_after_an_hour() -> None:
    written = Written()
    buffer = StatementBuffer(written)
    await buffer.note("a", [SAID], 100)
    assert written.writes == 1
    again = replace(SAID, end_ns=20, compared_ns=200)
    await buffer.note("a", [again], 200)
    assert written.writes == 1
    assert await buffer.between(0, 100) == {"a": [again]}
    assert await buffer.between(30, 100) == {"a": [SAID]}, "what was written"
    await buffer.note("b", [SAID], 200)
    await buffer.note("a", [replace(again, count=4)], 300)
    assert written.writes == 3
    await buffer.note("a", [replace(again, count=4)], 300 + HOUR_NS)
    assert written.writes == 4


async def test_what_waits_is_written_at_the_end() -> None:
    written = Written()
    buffer = StatementBuffer(written)
    later = replace(SAID, compared_ns=200)
    await buffer.note("a", [SAID], 100)
    await buffer.note("a", [later], 200)
    await buffer.flush()
    await buffer.flush()
    assert (written.writes, written.last) == (2, {"a": [later]})
