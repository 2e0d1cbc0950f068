"""A dictionary of bounded size, for what a remote side can make grow."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedDict(OrderedDict[_K, _V]):
    """The entries set last, ``most`` of them, the oldest first; setting one again renews it.

    All of `OrderedDict` may be used; `update` and `setdefault` keep the bound too.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _K, value: _V) -> None:
        """Set an entry; with more than ``most``, the one set longest ago is forgotten."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
