"""What an attack is told of the node that it attacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses are HOST:PORT."""

    address: str
    peer_address: str
    metrics_address: str
