"""What a view asks of storage, and how it is answered.

A view that does not hold everything works through a read step by step: it says what it needs,
is given it, and goes on, until the answer is there. Each step needs little, however much is read.

    needs(read) ── None ──────────────────────────────► answer(read)
         │                                                  ▲
         └─ Needs ─► load(what was needed) ─► needs(read) ──┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from reconcile.summaries.buckets import Buckets
from reconcile.view import Answer, Read, Spans

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class NeedBuckets:
    """Give the buckets of one length inside some longer ones: `Buckets`.

    Attributes:
        length_ns: the length of the wanted ones.
        parents: ``(n,)``, starts of the longer ones, ascending.
        parent_ns: the length of these.
    """

    length_ns: int
    parents: NDArray[np.int64]
    parent_ns: int


@dataclass(frozen=True, slots=True)
class NeedIds:
    """Give the IDs in some spans, ascending, at most ``limit`` of them: `SyncIds`.

    Exactly ``limit`` IDs mean that there may be more.
    """

    spans: Spans
    limit: int


@dataclass(frozen=True, slots=True)
class NeedHashes:
    """Give the IDs, in any order, that have one of some hashes, ``(n, 32)``: `SyncIds`."""

    hashes: NDArray[np.uint8]


Needs: TypeAlias = NeedBuckets | NeedIds | NeedHashes
Loaded: TypeAlias = Buckets | SyncIds
Loading: TypeAlias = Generator[Needs, Loaded, _Result]
"""A computation that asks for what it needs on its way."""


class LoadingView(ABC):
    """A `reconcile.view.View` whose answers are computations that ask for what they need."""

    def __init__(self) -> None:
        self._read: Read | None = None
        self._reading: Loading[Answer] | None = None
        self._needs: Needs | None = None
        self._answer: Answer | None = None

    @abstractmethod
    def reading(self, read: Read) -> Loading[Answer]:
        """Work through a read."""

    def needs(self, read: Read) -> Needs | None:
        """What must be loaded next for a read; None: it can be answered.

        A read other than the last one ends the work on that.
        """
        if self._read is not read:
            self.forget()
            self._read = read
            self._reading = self.reading(read)
            self._go_on(None)
        return self._needs

    def load(self, loaded: Loaded) -> None:
        """Take what ``needs`` asked for.

        Raises:
            SummaryMismatch: it contradicts what was loaded before.
        """
        if self._needs is None:
            raise ValueError("nothing is needed: call needs() first, and load what it says")
        self._go_on(loaded)

    def answer(self, read: Read) -> Answer:
        """The answer to a read whose needs were all met; once."""
        if self._read is not read or self._answer is None:
            raise ValueError("the read is not worked through: meet what needs() says first")
        answer = self._answer
        self.forget()
        return answer

    def forget(self) -> None:
        """Leave the work on the current read."""
        if self._reading is not None:
            self._reading.close()
        self._read = self._reading = self._needs = self._answer = None

    def _go_on(self, loaded: Loaded | None) -> None:
        assert self._reading is not None
        try:
            # The first step of a generator takes None.
            self._needs = self._reading.send(loaded)  # type: ignore[arg-type]
        except StopIteration as ended:
            self._needs, self._answer = None, ended.value
        except BaseException:
            self.forget()
            raise
