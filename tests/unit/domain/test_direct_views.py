"""Answers of a view to a whole payload: small indexes on the event loop, large ones beside it."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack

import numpy as np
import pytest

from reconcile.algorithm.direct import Direct
from reconcile.algorithm.plan import Tuning
from reconcile.algorithm.turn import Rules
from reconcile.ids import LOWEST, SyncIds
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SESSION_LIMITS
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from store.domain.hub import START
from store.sync.index.hot import HotView
from store.sync.index.views import StoredView
from store.sync.limits import THREADED_ANSWERED

RULES = Rules(
    cluster=0,
    shards=(),
    limits=DEFAULT_SESSION_LIMITS,
    differences_left=1_000,
    tuning=Tuning(),
    ordinal=2,
    large=None,
    known_count=None,
)
"""Of a session that has just begun."""


threads: list[threading.Thread] = []


class _Noting(IndexView):
    def direct(self, asked: Direct, start_ns: int = 0) -> Answer:
        threads.append(threading.current_thread())
        return super().direct(asked, start_ns)


@pytest.mark.parametrize("count", [1, THREADED_ANSWERED + 1])
async def test_a_payload_is_answered_from_a_large_index_beside_the_event_loop(count: int) -> None:
    ids = SyncIds(np.arange(1, count + 1), np.zeros((count, 32), np.uint8))
    view = _Noting(IndexView.of(ids).rows)
    # A fingerprint of nothing over all of time: everything is sent.
    payload = b"\0\0" + b"\xff" * 8 + b"\x7f\1" + bytes(32)
    asked = Direct(payload, 2, 0, 2**63 - 1, RULES)
    threads.clear()
    async with AsyncExitStack() as stack:
        opened = StoredView(None, stack, LOWEST, HotView(view, LOWEST, START), None)  # type: ignore[arg-type]
        await opened.answer(Read(direct=asked))
    assert [each is threading.main_thread() for each in threads] == [count == 1]
