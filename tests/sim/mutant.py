"""Faults that are planted in what ships, for the simulator to find."""

from __future__ import annotations
import __future__

import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sim.run import SimulationError, simulate

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A fault, such as a change might bring, and words of the failure of a run that finds it.

    ``first_seed`` is one whose run finds it soon, ``size`` that of the run, if it is not drawn.
    """

    plant: Plant
    finding: str
    first_seed: int = 0
    size: int | None = None

    def find(self, patch: pytest.MonkeyPatch, kind: str, runs: int) -> None:
        """Plant it, and run seeds until one shows it and says how to repeat that."""
        self.plant(patch)
        found: list[str] = []
        for seed in range(self.first_seed, self.first_seed + runs):
            try:
                simulate(kind, seed, self.size)
            except SimulationError as failure:
                first, *others = str(failure).splitlines()
                found.append(first)
                if re.search(self.finding, first):
                    assert f"seed {seed}:" in first
                    size = f" --size {self.size}" if self.size else ""
                    again = f"python -m sim {kind} --seed {seed}{size} --trace"
                    assert others[-1] == f"repeat it with: {again}"
                    return
        pytest.fail(f"no run of {runs} has found it, but: {found}")


def replace_with(owner: object, name: str, value: object) -> Plant:
    """Replace an attribute of a shipped class or module."""
    return lambda patch: patch.setattr(owner, name, value)


def edit(owner: type | Any, name: str, *texts: str) -> Plant:  # noqa: ANN401 - or a module
    """Change the text of a function of a shipped class or module.

    ``texts``: what stands in it once, and what stands there instead, by turns.
    """

    def plant(patch: pytest.MonkeyPatch) -> None:
        found = inspect.getattr_static(owner, name)
        function = inspect.unwrap(getattr(found, "fget", found))
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in zip(texts[::2], texts[1::2], strict=True):
            assert source.count(old) == 1, f"{name} has {old!r} {source.count(old)} times"
            source = source.replace(old, new)
        # The argument is what `super` looks for.
        source = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {name}"
        made: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, f"<{name}>", "exec", flags), function.__globals__, made)
        patch.setattr(owner, name, made["make"](owner))

    return plant


def together(*plants: Plant) -> Plant:
    """Plant a fault in several places."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for each in plants:
            each(patch)

    return plant


def asyncio_with(name: str, value: object) -> SimpleNamespace:
    """Return `asyncio` with something else in one place."""
    return SimpleNamespace(**{**vars(asyncio), name: value})


async def sleep_not(_: float) -> None:
    """Yield to other tasks, in place of a pause."""
    await asyncio.sleep(0)


def nothing(*_: object, **__: object) -> None:
    """Ignore what should be done."""
