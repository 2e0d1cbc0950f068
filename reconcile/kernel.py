"""The compiled kernel, if it could be built; the base protocol works without it, only slower.

The source is in `reconcile/native`, which describes each function at its definition. Wheels have
the built file; an installation from source builds it if there is a C compiler. The base protocol
has every function in Python too, as the reference and the fallback; a kernel function that meets
an unusual case (a malformed payload, a bound inside a nanosecond) returns None or False and leaves
the case to Python, so errors have one wording. The compact mode needs the kernel.

Columns are C-contiguous arrays of the dtypes that this package uses. Sizes are checked, values
never lead outside of a column, and columns that do not fit raise ``ValueError``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

try:
    from reconcile import _kernel as _built  # type: ignore[attr-defined]
except ImportError:
    _built = None

VERSION: Final = 30
"""The version of the kernel's source. A file built from another one is not used."""

Column: TypeAlias = NDArray[Any]

RowsHandle: TypeAlias = tuple[
    tuple[NDArray[np.int64], ...],
    tuple[NDArray[np.uint64], ...],
    NDArray[np.int64],
    NDArray[np.uint64],
]
"""An index: timestamps and running XORs of its chunks, where these start, and their bases."""


def usable() -> ModuleType | None:
    """Return the compiled functions, if they were built from this package's source, or None."""
    return _built if getattr(_built, "VERSION", None) == VERSION else None


compiled: ModuleType | None = usable()
"""The module of compiled functions; None: Python does all of it."""


def require() -> ModuleType:
    """Return the compiled functions.

    Raises:
        RuntimeError: the kernel is missing.
    """
    if compiled is None:
        raise RuntimeError("the compact mode needs the compiled kernel: install a C compiler")
    return compiled


@contextmanager
def python_only() -> Iterator[None]:
    """Suspend the kernel meanwhile: for tests and benchmarks of one thread."""
    global compiled  # noqa: PLW0603 - which of the two equal ways is taken is no state of a result
    saved, compiled = compiled, None
    try:
        yield
    finally:
        compiled = saved
