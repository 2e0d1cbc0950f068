"""Faults that are planted in what ships, for the simulator to find.

`planted.toml` has the faults by the kind of run that finds them: words of the failure, as
``finding``; the function to change, ``in``; and its text before and after, or the ``value`` that
replaces it: an expression, or a function ``planted``, in which ``original`` is what was there.
``also`` has further places. `seeds.toml` has the seed, and perhaps the size, of a run that finds
each fault at once. When other draws have moved them,

    python -m tests.sim.mutant [WORDS OF A NAME]

searches seeds for the cheapest runs that find these faults, and writes them down.
"""

from __future__ import annotations
import __future__

import asyncio
import importlib
import inspect
import re
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from sim.run import SimulationError, simulate
from sim.world import World
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch

Plant = Callable[[pytest.MonkeyPatch], None]

FAULTS: Final = Path(__file__).with_name("planted.toml")
SEEDS: Final = Path(__file__).with_name("seeds.toml")
DAYS: Final = 20
"""The length of a year in which its faults show."""

RUNS: Final = 120
"""A fault must show in one of this many runs from its seed on; most show in the first."""

EVENTS: Final = 30_000
"""The limit of events, above those of the same runs without a fault: an endless loop has no end."""

_SIZES: Final = {"nodes": (2, 3, None), "gossip": (2, 3, None), "year": (DAYS,)}
"""Sizes of runs that a search tries: fewer nodes take less time."""

_CHEAP_S: Final = 0.5
_SEARCH_S: Final = 1.5
"""A search ends with a run of so little processor time, or after so much of all of them."""


@dataclass(frozen=True)
class Mutant:
    """A fault, such as a change might bring, and words of the failure of a run that finds it.

    ``first_seed`` is one whose run finds it soon, ``size`` that of the run, if it is not drawn.
    """

    kind: str
    name: str
    plants: tuple[Plant, ...]
    finding: str
    first_seed: int = 0
    size: int | None = None

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Plant it, and bound what goes round in circles."""
        patch.setattr(World, "max_events", EVENTS)
        for each in self.plants:
            each(patch)

    def find(self, patch: pytest.MonkeyPatch) -> None:
        """Plant it, and run seeds until one shows it and says how to repeat that."""
        self.plant(patch)
        found: list[str] = []
        for seed in range(self.first_seed, self.first_seed + RUNS):
            failure = self.run(seed)
            if failure is None:
                continue
            first, *others = failure.splitlines()
            found.append(first)
            if re.search(self.finding, first):
                assert f"seed {seed}:" in first
                size = f" --size {self.size}" if self.size else ""
                again = f"python -m sim {self.kind} --seed {seed}{size} --trace"
                assert others[-1] == f"repeat it with: {again}"
                return
        pytest.fail(f"no run of {RUNS} has found it, but: {found}")

    def run(self, seed: int) -> str | None:
        """Run a seed with the fault that is planted; return the failure, if there is one."""
        try:
            simulate(self.kind, seed, self.size)
        except SimulationError as failure:
            return str(failure)
        return None


def read_mutants() -> Iterator[Mutant]:
    """Read the faults and the seeds that find them."""
    seeds = _read_seeds()
    for kind, faults in tomllib.loads(FAULTS.read_text(encoding="utf-8")).items():
        for name, fault in faults.items():
            plants = tuple(map(_plant, (fault, *fault.get("also", ()))))
            yield Mutant(kind, name, plants, fault["finding"], *seeds.get(kind, {}).get(name, ()))


def _read_seeds() -> dict[str, dict[str, list[int]]]:
    return tomllib.loads(SEEDS.read_text(encoding="utf-8"))


def _plant(fault: Mapping[str, Any]) -> Plant:
    module_name, _, path = fault["in"].partition(":")
    *outer, name = path.split(".")
    owner: Any = importlib.import_module(module_name)
    names = {**vars(owner), **_HELPERS}
    for each in outer:
        owner = getattr(owner, each)
    if "value" in fault:
        return lambda patch: patch.setattr(owner, name, _value(fault["value"], owner, name, names))
    old, new = ([text] if isinstance(text, str) else text for text in (fault["old"], fault["new"]))
    return edit(owner, name, *(text for pair in zip(old, new, strict=True) for text in pair))


def _value(text: str, owner: object, name: str, names: Mapping[str, Any]) -> object:
    """Evaluate an expression, or define a function, among the names of a module."""
    made = {**names, "original": getattr(owner, name)}
    if not text.startswith(("def ", "async def ")):
        return eval(text, made)
    exec(text, made)
    return made["planted"]


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
        patch.setitem(function.__globals__, "all_new", _all_new)
        exec(compile(source, f"<{name}>", "exec", flags), function.__globals__, made)
        patch.setattr(owner, name, made["make"](owner))

    return plant


async def _sleep_not(_: float) -> None:
    await asyncio.sleep(0)


def _nothing(*_: object, **__: object) -> None:
    """Ignore what should be done."""


def _all_new(batch: RecordBatch) -> StoreResult:
    return StoreResult([True] * len(batch))


_HELPERS: Final = {
    "nothing": _nothing,
    "without_pauses": SimpleNamespace(**{**vars(asyncio), "sleep": _sleep_not}),
}
"""Further names of a ``value``."""


def search(mutant: Mutant) -> list[int]:
    """Return the seed, and the size if it is not drawn, of a cheap run that finds a fault.

    Raises:
        AssertionError: none has found it.
    """
    best, began_s = (float("inf"), -1, 0), time.process_time()
    for seed in range(RUNS):
        for size in _SIZES.get(mutant.kind, (None,)):
            before_s = time.process_time()
            if _finds(replace(mutant, first_seed=seed, size=size)):
                best = min(best, (time.process_time() - before_s, seed, size or 0))
            is_over = time.process_time() - began_s > _SEARCH_S
            if best[0] < (float("inf") if is_over else _CHEAP_S):
                return list(best[1:]) if best[2] else [best[1]]
    raise AssertionError(f"no run has found: {mutant.kind}, {mutant.name}")


def _finds(mutant: Mutant) -> bool:
    """Return True if the first run shows a fault, and nothing without it."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        failure = mutant.run(mutant.first_seed)
    if failure is None or not re.search(mutant.finding, failure.splitlines()[0]):
        return False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "max_events", EVENTS)
        return mutant.run(mutant.first_seed) is None


def main(*words: str) -> None:
    """Search seeds for the faults whose names have all of these words."""
    seeds = _read_seeds()
    for mutant in read_mutants():
        if all(word in mutant.name for word in words):
            seeds.setdefault(mutant.kind, {})[mutant.name] = search(mutant)
    lines = [
        "# The seed, and perhaps the size, of a run that finds each fault of planted.toml.",
        "# Written by `python -m tests.sim.mutant`.",
    ]
    for kind, named in seeds.items():
        lines += ["", f"[{kind}]", *(f'"{name}" = {found}' for name, found in named.items())]
    SEEDS.write_text("\n".join((*lines, "")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
