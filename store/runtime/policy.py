"""What the options say about clients: their limits, and the rules for messages at this moment."""

from __future__ import annotations

from collections.abc import Callable

from store.config.node import NodeConfig
from store.domain.quota import ClientLimits
from storenode.message.rules import Policy


def client_limits(config: NodeConfig) -> ClientLimits:
    """The limits of a client for which the token file sets none."""
    return ClientLimits(
        requests_per_s=config.max_requests_per_second,
        messages_per_s=config.max_messages_per_second,
        received_bytes_per_s=config.max_received_per_second,
        calls=config.max_calls,
        streams=config.max_streams,
        request_bytes=config.max_request_size,
    )


class PolicySource:
    """Gives the policy for messages of clients; the retention horizon moves with the clock.

    `raise_horizon` tells it how far the database has dropped messages, which a node with a longer
    retention, or none, must respect too.
    """

    def __init__(self, config: NodeConfig, now_ns: Callable[[], int]) -> None:
        self._config = config
        self._now_ns = now_ns
        self._dropped_ns = 0

    def raise_horizon(self, horizon_ns: int) -> None:
        """Nothing below this time is held or admitted any more; never goes back."""
        self._dropped_ns = max(self._dropped_ns, horizon_ns)

    def current(self) -> Policy:
        """The policy for messages of clients, now."""
        config = self._config
        horizon_ns = self._dropped_ns
        if config.retention is not None:
            horizon_ns = max(horizon_ns, self._now_ns() - config.retention)
        return Policy(
            max_drift_ns=config.max_clock_drift,
            horizon_ns=horizon_ns or None,
            cluster=config.cluster,
            shards=config.shard,
            max_message_bytes=config.max_message_size,
        )
