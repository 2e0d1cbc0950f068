"""A warning when response groups do not fit the participants, once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from storenode.sds.channel import MessageChannel
from storenode.sds.config import RepairConfig, response_groups
from storenode.sds.events import GroupsUnfit
from storenode.sds.limits import CENSUS_MS
from tests.unit.sds.worlds import NOW, channel, of, take, wire


def heard(names: range, *, groups: int) -> list[GroupsUnfit]:
    me = channel(repair=RepairConfig(groups=groups))
    return speak(me, names, NOW)


def speak(me: MessageChannel, names: range, now: int) -> list[GroupsUnfit]:
    messages = [wire(f"m{now}-{name}", sender=f"peer {name}", content=None) for name in names]
    return of(GroupsUnfit, take(me, *messages, now=now))


def test_groups_follow_from_the_number_of_participants() -> None:
    found = [response_groups(count) for count in (1, 127, 128, 1_000, 10_000)]
    assert found == [1, 1, 2, 8, 79]
    with pytest.raises(ValueError, match="at least one"):
        response_groups(0)


def test_too_few_groups_are_told_when_twice_as_many_speak_as_fit() -> None:
    assert heard(range(254), groups=1) == []
    assert heard(range(255), groups=1) == [GroupsUnfit(1, 256, 3)]


def test_it_is_told_again_only_for_twice_as_many_and_the_estimate_is_near() -> None:
    told = heard(range(4_000), groups=1)
    assert [told[0].participants, len(told)] == [256, 4]
    for before, after in pairwise(told):
        assert 2 * before.participants <= after.participants
    assert 2_000 < told[-1].participants < 2_500, "about as many as had spoken by then"


def test_too_many_groups_are_told_after_a_day_and_not_again() -> None:
    me = channel(repair=RepairConfig(groups=8))
    assert speak(me, range(100), NOW) == []
    days = [speak(me, range(100), NOW + day * CENSUS_MS) for day in (1, 2, 3)]
    assert days == [[GroupsUnfit(8, 101, 1)], [], []]


def test_who_speaks_again_is_counted_once_and_those_of_the_day_before_count() -> None:
    me = channel(repair=RepairConfig(groups=1))
    for minute in range(5):
        assert speak(me, range(200), NOW + minute * 60_000) == []
    (told,) = speak(me, range(150, 300), NOW + CENSUS_MS)
    assert told.participants == 256
