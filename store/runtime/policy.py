"""The policy for messages of clients, whose horizon moves, and the limits of a client."""

from __future__ import annotations

from collections.abc import Callable

from store.config.node import NodeConfig
from store.db.maintenance.retention import RetentionBrake
from store.db.pool import Database
from store.domain.quota import ClientLimits
from store.domain.retention import RetentionPolicy
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from storenode.message.rules import Policy

_LOG = get_logger("store.runtime.policy")


def client_limits(config: NodeConfig) -> ClientLimits:
    """Return the limits of a client for which the token file sets none."""
    return ClientLimits(
        requests_per_s=config.max_requests_per_second,
        messages_per_s=config.max_messages_per_second,
        calls=config.max_calls,
        streams=config.max_streams,
    )


class PolicySource:
    """The policy for messages of clients, whose retention horizon moves with the clock.

    `set_horizon` notes up to when the database has dropped messages, which a node with a longer
    retention, or none, must respect too.
    """

    def __init__(self, config: NodeConfig, now_ns: Callable[[], int]) -> None:
        limits = config.retention, config.retention_size, config.retention_requires_archive
        self.brake = RetentionBrake(RetentionPolicy(*limits), confirmed=config.retention_confirm)
        self._config = config
        self._now_ns = now_ns
        self._dropped_ns = 0

    def set_horizon(self, horizon_ns: int) -> None:
        """Admit nothing below the horizon of the store, which an operator may have lowered."""
        self._dropped_ns = horizon_ns

    @property
    def retention_ns(self) -> int | None:
        """The age at which messages are dropped; None: none are, by age."""
        return self.brake.policy.age_ns

    def shortfall_ns(self) -> int:
        """Return for how long before the horizon messages are missing that retention keeps.

        0 with a limit on size, which drops what the limit on age would keep.
        """
        if self.brake.policy.size_bytes is not None:
            return 0
        age_ns = self.retention_ns
        return max(0, self._dropped_ns - (0 if age_ns is None else self._now_ns() - age_ns))

    async def settle_retention(self, database: Database, metrics: Metrics) -> None:
        """Settle the brake, show what it holds, and log where that has changed.

        Raises:
            StoreUnavailable: The database does not serve.
        """
        before = self.brake.excess
        await database.read(self.brake.settle, self._now_ns())
        excess = self.brake.excess
        metrics.retention_overdue_days.set(0 if excess is None else excess.days)
        if excess is not None and before is None:
            _LOG.error(
                "retention_held",
                days=round(excess.days, 1),
                partitions=len(excess.partitions),
                bytes=excess.size_bytes,
                share=round(excess.share, 3),
                reason="--retention or --retention-size would drop more than the store has agreed"
                " to: correct the option, or confirm it by `storenode db retention --apply`",
            )
        elif excess is None and before is not None:
            _LOG.info("retention_released")

    def current(self) -> Policy:
        """Return the policy as it is now."""
        config = self._config
        horizon_ns, age_ns = self._dropped_ns, self.brake.policy.age_ns
        if age_ns is not None:
            horizon_ns = max(horizon_ns, self._now_ns() - age_ns)
        return Policy(
            max_drift_ns=config.max_clock_drift,
            horizon_ns=horizon_ns or None,
            cluster=config.cluster,
            shards=config.shard,
            max_message_bytes=config.max_message_size,
        )
