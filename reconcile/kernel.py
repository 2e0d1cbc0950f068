"""The hot places in compiled code, where it could be built; Python does the same everywhere.

The source is in `reconcile/native`. Wheels carry the built file; an installation from source
builds it if there is a C compiler. What it computes the Python code computes too, and tests compare
the two. A function that meets anything unusual (a malformed payload, a bound inside a nanosecond)
says so and leaves the case to Python; so errors have one wording.

Columns are C-contiguous arrays of the dtypes that this package uses. Sizes are checked, values
never lead outside of a column, and what does not fit raises ``ValueError``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

try:
    from reconcile import _kernel as _built  # type: ignore[attr-defined]
except ImportError:
    _built = None

VERSION: Final = 18
"""Of the source that this package comes with. A file built from another one is not used."""

Column: TypeAlias = NDArray[Any]

RowsHandle: TypeAlias = tuple[
    tuple[NDArray[np.int64], ...],
    tuple[NDArray[np.uint64], ...],
    NDArray[np.int64],
    NDArray[np.uint64],
]
"""An index: timestamps and running XORs of its chunks, where these start, and their bases."""


class Kernel(Protocol):
    """The compiled functions; `reconcile/native` describes each where it is defined."""

    def reply(
        self,
        index: RowsHandle,
        data: bytes,
        at: int,
        numbers: Column,
        planner: Callable[[int, bytes], tuple[Column, ...]],
        /,
    ) -> tuple[bytes, int, int, int, int, bytes, bytes, bytes, bytes] | None:
        """The answer to a payload, and what was found; None: it is unusual."""

    def survey(
        self, data: bytes, at: int, max_ranges: int, max_items: int, /
    ) -> tuple[int, int, int, int, int] | None:
        """Check a payload; ranges, fingerprints, sets, items, and whether bounds have hashes."""

    def parse(self, data: bytes, at: int, /, *columns: Column) -> None:
        """Fill columns with what is in a payload that was checked."""

    def encode(self, head: bytes, /, *columns: Column) -> bytes | None:
        """Ranges as bytes."""

    def places(self, index: RowsHandle, /, *columns: Column) -> bool:
        """Where spans without hashes begin and end."""

    def fingerprints(self, index: RowsHandle, /, *columns: Column) -> None:
        """Fingerprints of intervals of places."""

    def items(self, index: RowsHandle, /, *columns: Column) -> None:
        """The IDs in intervals of places."""

    def split(self, index: RowsHandle, /, *columns: Column) -> bool:
        """Intervals of places cut at equal counts, between IDs of different times."""

    def probe(self, index: RowsHandle, /, *columns: Column) -> None:
        """Which intervals of places have exactly one ID with a given hash."""

    def match(self, /, *columns: Column) -> None:
        """Where IDs belong among others."""

    def lattice(self, elements: Column, state: Column, /) -> bool:
        """Add the expansions of elements to a lattice sum; False: built without vectors."""

    def balance(self, prefix: Column, samples: Column, /) -> None:
        """Running balances of a chunk."""
        ...

    def anchors(self, /, *columns: Column) -> int:
        """Anchors of a chunk, and what is before them; how many there are."""
        ...

    def cut(
        self, index: RowsHandle, sums: tuple[Column, ...], /, *columns: Column
    ) -> tuple[bytes, bytes]:
        """Slices of equal counts: as a frame has them, and as columns."""
        ...

    def compare(
        self, index: RowsHandle, sums: tuple[Column, ...], /, *columns: Column | bytes | int
    ) -> tuple[bytes, bytes, int, int, int] | None:
        """The slices of a frame beside one's own: columns of those that differ, which do, counts
        of the others.
        """
        ...

    def fill(self, index: RowsHandle, /, *columns: Column) -> None:
        """The short IDs in intervals of places, and a table with them."""
        ...

    def sift(
        self, index: RowsHandle, /, *columns: Column
    ) -> tuple[bytes, bytes, bytes, bytes, int]:
        """The short IDs in intervals of places, without those that a single one explains."""
        ...

    def survey_slices(
        self, index: RowsHandle, /, *columns: Column
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], int, int]:
        """Sums over slices that differ, and over those left; is some in a gap, or listed."""
        ...

    def read_head(self, data: bytes, slices: int, /) -> tuple[bytes, int, bytes, int, int] | None:
        """What an answer begins with; None: it is unusual."""
        ...

    def read_table(self, data: bytes, slices: int, /) -> tuple[Any, ...] | None:
        """A table, and what is beside it; None: it is unusual."""
        ...

    def read_result(self, data: bytes, /) -> tuple[bytes, bytes, int, bytes] | None:
        """What was found; None: it is unusual."""
        ...

    def write_table(self, /, *columns: Column) -> bytes:
        """A table, and what is beside it, as a frame."""
        ...

    def divide(self, named: Column, own: Column, /) -> tuple[bytes, bytes, bytes, int, int, int]:
        """What is only among named short IDs, and what only among the own ones."""
        ...

    def pack(self, words: Column, size: int, /) -> bytes:
        """The lower bytes of each word."""
        ...

    def tally(self, shorts: Column, balances: Column, /) -> None:
        """Balances of short IDs, by their bits."""
        ...

    def shorten(self, hashes: Column, key: Column, shorts: Column, /) -> None:
        """The short IDs of hashes."""
        ...

    def insert(self, shorts: Column, shape: Column, cells: Column, /) -> None:
        """Short IDs put into a table."""
        ...

    def peel(self, cells: Column, shape: Column, shorts: Column, /) -> int:
        """Short IDs taken out of a table."""
        ...

    def find(self, /, *columns: Column) -> None:
        """Where short IDs, which ascend, are among others."""
        ...

    def gather(self, index: RowsHandle, /, *columns: Column) -> None:
        """The IDs at rows of what intervals of places have together."""
        ...


def usable() -> Kernel | None:
    """The kernel, if it was built from the source that this package comes with."""
    if _built is None or getattr(_built, "VERSION", None) != VERSION:
        return None
    found: Kernel = _built
    return found


compiled: Kernel | None = usable()
"""The kernel; None: Python does all of it."""


@contextmanager
def python_only() -> Iterator[None]:
    """Do without the kernel meanwhile: for tests and benchmarks of one thread."""
    global compiled  # noqa: PLW0603 - which of the two equal ways is taken is no state of a result
    kept, compiled = compiled, None
    try:
        yield
    finally:
        compiled = kept
