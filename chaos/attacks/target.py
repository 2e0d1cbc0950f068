"""The node that is attacked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses of a node, HOST:PORT; ``http_address`` is empty without such a listener.

    ``gateway`` and ``gateway_ws`` are multiaddrs of a gateway before the node, if there is one.
    """

    address: str
    peer_address: str
    metrics_address: str
    http_address: str
    gateway: str = ""
    gateway_ws: str = ""
