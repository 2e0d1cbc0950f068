"""Sharing out work that lies next to each other, such as files and slices in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shared_out(items: Sequence[T], rows_of: Callable[[T], int], share: int) -> list[list[T]]:
    """Neighbours together, about ``share`` rows in each list, and no list empty.

    An item goes where the middle of it falls, so that no list is far from its share unless an item
    is. There are at most as many lists as shares in all.
    """
    portions: dict[int, list[T]] = {}
    before = 0
    for each in items:
        rows = rows_of(each)
        portions.setdefault(max(0, 2 * before + rows - 1) // (2 * share), []).append(each)
        before += rows
    return list(portions.values())
