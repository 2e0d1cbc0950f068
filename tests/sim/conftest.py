"""Fixtures of the tests of the simulator."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def swept() -> Iterator[None]:
    """Collect what faulty runs leave behind, before it could act in the next run of the process."""
    yield
    gc.collect()
