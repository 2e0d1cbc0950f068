"""How a fault is planted in what ships, for the simulator to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A fault, and which words a run that finds it says.

    ``first_seed``: where to begin, for a fault that shows in few runs.
    """

    plant: Plant
    finding: str
    first_seed: int = 0


def replace_with(owner: object, name: str, value: object) -> Plant:
    """Replace an attribute of a shipped class or module."""
    return lambda patch: patch.setattr(owner, name, value)
