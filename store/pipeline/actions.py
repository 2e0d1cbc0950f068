"""What a commit of the log says of a file: that it came, or that it went."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import numpy as np
from deltalake.transaction import AddAction, RemoveAction


@dataclass(frozen=True)
class Written:
    """A file that a job wrote: path relative to the table, and what is in it."""

    path: str
    day: str
    shard: int
    size_bytes: int
    rows: int
    min_ts: int
    max_ts: int


def run_of(path: str) -> str:
    """The folder of the job that wrote a file, by the path of the file in the table."""
    return path.split("/", 1)[0]


def removal(path: str) -> RemoveAction:
    """That a file, by its path in the table, is no longer part of it."""
    return RemoveAction(path, False, time.time_ns() // 1_000_000)


def addition(each: Written, *, new: bool) -> AddAction:
    """That a file is part of the table; ``new``: with messages that it did not hold before."""
    stats = {
        "numRecords": each.rows,
        "minValues": {"ts": each.min_ts},
        "maxValues": {"ts": each.max_ts},
        "nullCount": {"ts": 0},
    }
    values = {"day": each.day, "shard": str(each.shard)}
    now_ms = time.time_ns() // 1_000_000
    return AddAction(each.path, each.size_bytes, values, now_ms, new, json.dumps(stats))


def day_of(each: Written) -> int:
    """Of a file, in days since the epoch."""
    return int(np.datetime64(each.day, "D").astype(int))
