"""The world as a running node gives it to its drivers."""

from __future__ import annotations

import random
import time

from store.domain.environment import Environment
from store.observe.logging import get_logger
from store.observe.metrics import Metrics


def system_environment(component: str, metrics: Metrics) -> Environment:
    """The clocks of the system, unpredictable randomness, and a log that names the component."""
    return Environment(
        now_ns=time.time_ns,
        steady_ns=time.monotonic_ns,
        random=random.SystemRandom(),
        log=get_logger(component),
        counts=metrics,
    )
