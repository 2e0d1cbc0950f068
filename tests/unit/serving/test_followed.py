"""The topics that followers name together."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from store.serving.failure import CallFailure, Code
from store.serving.followed import ROUTE_BYTES, Followed

NAMES = ["x" * (1_000 - ROUTE_BYTES)] * 10


def refusal(followed: Followed, caller: str) -> str:
    with pytest.raises(CallFailure) as caught, followed.topics(caller, NAMES):
        pass
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    return caught.value.sentence


def test_one_caller_gets_half_and_all_get_the_whole() -> None:
    followed = Followed(40_000)
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(followed.topics("a", NAMES))
        assert "20,000 bytes for the topics of all followers of one client" in refusal(
            followed, "a"
        )
        for caller in ("b", "c"):
            calls.enter_context(followed.topics(caller, NAMES))
        assert "40,000 bytes for the topics of all followers of this" in refusal(followed, "d")
        # Who follows all topics takes nothing.
        calls.enter_context(followed.topics("a", []))
    for caller in "abcd":
        with followed.topics(caller, NAMES):
            pass
