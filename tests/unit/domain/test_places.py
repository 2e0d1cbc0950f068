"""The assignment of places, against an oracle that goes through the rules one by one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from store.domain.places import FREE, Places, Standing


def naive(places: Places, newcomer: Standing, holders: list[Standing]) -> int | None:
    """Apply the rules in the order of the module."""
    strangers = [each for each in holders if not each.trusted]
    own_share = places.limit if newcomer.trusted else places.limit - places.reserved
    share_used = holders if newcomer.trusted else strangers
    if len(holders) < places.limit and len(share_used) < own_share:
        return FREE

    def places_of(address: str) -> int:
        return sum(each.address == address for each in strangers)

    def worth(index: int) -> tuple[bool, bool, int, int]:
        each = holders[index]
        return each.trusted, each.useful, -places_of(each.address), -(each.waits_ns or 0)

    leaving = []
    for index, each in enumerate(holders):
        if each.waits_ns is None or (each.trusted and not newcomer.trusted):
            continue
        if not newcomer.trusted and len(strangers) >= own_share and each.trusted:
            continue
        enough = places.patience_ns
        if (newcomer.trusted and not each.trusted) or (
            newcomer.trusted == each.trusted and newcomer.useful and not each.useful
        ):
            enough = places.least_wait_ns
        worthless = not each.trusted and not each.useful
        if worthless and places_of(each.address) >= places_of(newcomer.address):
            enough = places.least_wait_ns
        if each.waits_ns >= enough:
            leaving.append(index)
    return min(leaving, key=worth, default=None)


@given(st.integers(0, 2**32))
def test_places_are_shared_out_as_the_oracle_says(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.randint(1, 6)
    places = Places(limit, rng.randrange(limit), rng.randint(0, 60), rng.randint(0, 20))
    holders: list[Standing] = []
    for _ in range(40):
        waits_ns = None if rng.random() < 0.3 else rng.randint(0, 80)
        newcomer = Standing(rng.random() < 0.3, rng.random() < 0.3, rng.choice("abc"), waits_ns)
        chosen = places.choose(newcomer, holders)
        assert chosen == naive(places, newcomer, holders)
        if chosen == FREE:
            holders.append(newcomer)
        elif chosen is not None:
            assert newcomer.trusted or not holders[chosen].trusted
            holders[chosen] = newcomer
        elif holders and rng.random() < 0.3:
            holders.pop(rng.randrange(len(holders)))
        assert len(holders) <= limit
        assert sum(not each.trusted for each in holders) <= limit - places.reserved
