"""Attacks on a gateway over libp2p: everything that breaks one of its protocols."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from chaos.attacks.catalog import Target
from tests.support.waku_attacks import GONE, HOSTILE, HOSTILE_WEBSOCKETS

_ATTACKERS: Final = 8
_PATIENCE_S: Final = 60.0


async def gateway_protocols(target: Target, rng: random.Random, count: int) -> str:
    """Break all protocols of a gateway, eight at a time; 100,000 take about an hour."""
    kinds = [
        *((each, target["gateway"]) for each in HOSTILE),
        *((each, target["gateway_ws"]) for each in HOSTILE_WEBSOCKETS),
    ]
    made: Counter[str] = Counter()
    wrong: dict[str, str] = {}

    async def attack_on() -> None:
        while made.total() < count:
            number = made.total()
            kind, address = kinds[number] if number < len(kinds) else rng.choice(kinds)
            made[kind.__name__] += 1
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await kind(address, rng)
            except GONE:
                pass
            except Exception as error:  # noqa: BLE001 - the run goes on, and fails at its end
                wrong.setdefault(kind.__name__, repr(error))

    await asyncio.gather(*(attack_on() for _ in range(_ATTACKERS)))
    faults = "; ".join(f"{name}: {error}" for name, error in wrong.items()) or "none"
    return f"{made.total():,} attacks of {len(made)} kinds, answered wrongly: {faults}"
