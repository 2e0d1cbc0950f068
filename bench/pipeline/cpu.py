"""Processor time of a piece of work and of all processes that it has running, in a fresh process.

Unlike the time that passes it depends little on what else the machine does. Each side of a measure
has a process of its own, so that neither finds anything compiled, cached or imported by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import ParamSpec, TypeVar

import psutil

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time, in user and system mode, and seconds that passed."""

    cpu_s: float
    wall_s: float


def own_cpu_s(process: psutil.Process) -> float:
    """Return what a process has used, and those of its children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def tree_cpu_s(pid: int | None = None) -> float:
    """Return what a process (None: this one) and its descendants used, with ended children."""
    root = psutil.Process(pid)
    while True:
        processes = [root, *root.children(recursive=True)]
        try:
            return sum(map(own_cpu_s, processes))
        except psutil.NoSuchProcess as error:
            # It counts as its parent's now, which was read before it had ended.
            if error.pid == root.pid:
                raise


def descendants_cpu_s(pid: int) -> float:
    """Return what the processes that one has running, and theirs, have used."""
    return sum(tree_cpu_s(each.pid) for each in psutil.Process(pid).children())


def measured(work: Callable[[], T]) -> tuple[T, Used]:
    """Call ``work``; return its result, and what this process and its descendants used for it."""
    cpu_s, began = tree_cpu_s(), time.perf_counter()
    result = work()
    return result, Used(tree_cpu_s() - cpu_s, time.perf_counter() - began)


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a process of its own, which ends with the call."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BaseException:
            _end_children()
            raise


def _end_children() -> None:
    """Kill the processes of an interrupted call, whose result is not needed any more."""
    for child in active_children():
        with suppress(psutil.Error):
            for each in psutil.Process(child.pid).children(recursive=True):
                each.kill()
        child.kill()
