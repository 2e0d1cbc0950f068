import random
from collections import OrderedDict

import pytest

from storenode.common.backoff import Backoff
from storenode.common.bounded_dict import BoundedDict


@pytest.mark.parametrize("most", [1, 2, 7])
def test_a_bounded_dictionary_holds_what_was_set_last(most: int) -> None:
    rng, bounded, set_keys = random.Random(most), BoundedDict[int, int](most), list[int]()
    for step in range(2_000):
        key = rng.randrange(2 * most + 1)
        match rng.randrange(5):
            case 0:
                bounded[key] = step
            case 1:
                bounded.update({key: step})
            case 2 if key not in bounded:
                bounded.setdefault(key, step)
            case 3:
                bounded.pop(key, None)
                set_keys = [each for each in set_keys if each != key]
                continue
            case _:
                bounded.get(key)
                continue
        set_keys = [*(each for each in set_keys if each != key), key][-most:]
        assert bounded[key] == step
        assert list(bounded) == set_keys
    assert isinstance(bounded, OrderedDict)


def test_pauses_double_up_to_a_bound_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.take() == 0.5
