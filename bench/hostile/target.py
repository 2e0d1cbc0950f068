"""What an attack is told of the node that it attacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses are HOST:PORT; ``pid`` is that of the node."""

    address: str
    peer_address: str
    metrics_address: str
    token: str | None
    pid: int
