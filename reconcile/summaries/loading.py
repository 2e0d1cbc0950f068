"""What a view asks of storage, and how it is answered.

A view that does not hold everything works through a read as a generator: it yields what it needs,
is sent that, and goes on, until the answer is there. Each step needs little, however much is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import Ints, SyncIds
from reconcile.summaries.buckets import Buckets
from reconcile.view import Answer, Items, Measured, Parts, Probed, Read, Spans

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

    Exactly ``limit`` IDs mean that there may be more. ``contents``: give their digests too.
    """

    spans: Spans
    limit: int
    contents: bool = False


@dataclass(frozen=True, slots=True)
class NeedHashes:
    """Give the IDs, in any order, that have one of some hashes, ``(n, 32)``: `SyncIds`."""

    hashes: NDArray[np.uint8]


Needs: TypeAlias = NeedBuckets | NeedIds | NeedHashes
Loaded: TypeAlias = Buckets | SyncIds
Loading: TypeAlias = Generator[Needs, Loaded, _Result]
"""A computation that asks for what it needs on its way."""


class LoadingView(ABC):
    """Answers reads by computations that ask for what they need."""

    @abstractmethod
    def measure(self, spans: Spans) -> Loading[Measured]:
        """Counts and fingerprints of spans."""

    @abstractmethod
    def split(self, spans: Spans, wanted: Ints) -> Loading[Parts]:
        """Spans cut into about so many parts of about equal counts."""

    @abstractmethod
    def items(self, spans: Spans) -> Loading[Items]:
        """The IDs in spans."""

    @abstractmethod
    def probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """Which spans have exactly one ID with the hash that is looked for in them."""

    def reading(self, read: Read) -> Loading[Answer]:
        """Work through a read; takes one step with each call of `proceed`."""
        measured = parts = items = hits = None
        if read.measure is not None:
            measured = yield from self.measure(read.measure)
        if read.split is not None:
            parts = yield from self.split(*read.split)
        if read.items is not None:
            items = yield from self.items(read.items)
        if read.probe is not None:
            hits = yield from self.probe(*read.probe)
        return Answer(measured, parts, items, hits)


def proceed(reading: Loading[Answer], loaded: Loaded | None = None) -> Needs | Answer:
    """Go on with what was needed last, or begin: what is needed next, or the answer.

    Raises:
        SummaryMismatch: what was loaded contradicts what was loaded before.
    """
    try:
        # The first step of a generator takes None.
        return reading.send(loaded)  # type: ignore[arg-type]
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer
