"""A node that the tests of this folder share; each test has a channel of its own."""

from __future__ import annotations

import itertools

import pytest

from tests.support.node import shared_node

_numbers = itertools.count()

node = shared_node("participants", "--max-clock-drift", "off")
"""A node for clocks of any kind."""


@pytest.fixture
def room() -> str:
    """Return a channel that no other test uses."""
    return f"room-{next(_numbers)}"
