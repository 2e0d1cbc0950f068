"""What tests of faults share: dice with a printed seed, and the check of a database."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.node import NodeProcess


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> Random:
    """Dice of this test; the seed is printed when the test fails."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed}")  # noqa: T201 - shown by pytest with a failure
    return Random(seed)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with an embedded Postgres, not started."""
    process = NodeProcess(tmp_path / "data")
    yield process
    process.close()
