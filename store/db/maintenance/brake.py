"""The brake on retention: lower limits drop much only after a confirmation.

A dropped partition does not come back, and ``--retention 30m`` for ``30d`` is a slip of one letter.
So the database holds the limits that its store has agreed to. A node whose options keep as much, or
more, replaces them at its start. One whose options keep less goes on with the agreed limits where
its own would drop much at once (`store.domain.retention.find_excess`), until an operator confirms
them. What falls due day by day under agreed limits is never held.

A node that starts and finds more than a week due under agreed limits holds it as well: a backup of
last month may have been restored to save what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from psycopg import AsyncConnection

from store.db.maintenance.retention import read_inventory
from store.db.schema.names import FINE_TABLE
from store.db.statements import SQL
from store.domain.retention import MAX_EXCESS_NS, Excess, RetentionPolicy, find_excess

Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class RetentionReview:
    """The effect that limits would have on a store.

    Attributes:
        agreed: The limits that the store has agreed to; None: none yet.
        due: All partitions of messages that the limits would drop.
        excess: What must be confirmed before; None: nothing.
        horizon_ns: The horizon of the store.
    """

    agreed: RetentionPolicy | None
    due: Excess | None
    excess: Excess | None
    horizon_ns: int

    def has_backlog(self, policy: RetentionPolicy) -> bool:
        """Return True if more than a week is due, and needs no archive before it goes."""
        is_long = self.due is not None and self.due.span_ns > MAX_EXCESS_NS
        return is_long and not policy.requires_archive


async def read_agreed(connection: Connection) -> RetentionPolicy | None:
    """Return the limits that the store has agreed to; None: none yet."""
    ((age_ns, size_bytes),) = await (await connection.execute(SQL.stores.read_agreed)).fetchall()
    return None if age_ns is None else RetentionPolicy(age_ns or None, size_bytes or None)


async def agree(connection: Connection, policy: RetentionPolicy) -> None:
    """Let the store agree to limits; raises `psycopg.Error`."""
    async with connection.transaction():
        await connection.execute(SQL.stores.commit_locally)
        await connection.execute(SQL.stores.agree, (policy.age_ns or 0, policy.size_bytes or 0))


async def reopen(connection: Connection, horizon_ns: int) -> None:
    """Lower the horizon, so that older messages are admitted; raises `psycopg.Error`."""
    await connection.execute(SQL.stores.lower_horizon, (horizon_ns,))


async def review(connection: Connection, policy: RetentionPolicy, now_ns: int) -> RetentionReview:
    """Return what limits would drop now; reads the catalog alone. Raises `psycopg.Error`."""
    agreed = await read_agreed(connection)
    inventory = await read_inventory(connection)
    fine, plan = inventory.of(FINE_TABLE), inventory.plan(policy, now_ns)
    expected = None if agreed is None else inventory.plan(agreed, now_ns)
    due = Excess.of(plan.messages(), fine)
    return RetentionReview(agreed, due, find_excess(plan, expected, fine), inventory.horizon_ns)


class RetentionBrake:
    """The limits of retention that a node applies.

    Attributes:
        policy: These limits: those of the node's options, or the agreed ones while these are held.
        excess: The partitions that the options would drop, and that wait for a confirmation;
            None: there are none.
    """

    def __init__(self, wanted: RetentionPolicy, *, confirmed: bool = False) -> None:
        """Make a brake, which must be settled before anything is dropped.

        Args:
            wanted: The limits of the node's options.
            confirmed: An operator has confirmed them.
        """
        self._wanted = wanted
        self._confirmed = confirmed
        self._is_settled = self._is_backlog = False
        self.policy = wanted
        self.excess: Excess | None = None

    async def settle(self, connection: Connection, now_ns: int) -> None:
        """Decide which limits apply: at the start, and again every few seconds.

        Raises:
            psycopg.Error: The database refused; the decision stays what it was.
        """
        starts, wanted = not self._is_settled, self._wanted
        agreed = await read_agreed(connection)
        is_agreed = agreed is not None and wanted.keeps(agreed) and agreed.keeps(wanted)
        excess, is_backlog = None, False
        if not self._confirmed and (starts or not is_agreed or self._is_backlog):
            found = await review(connection, wanted, now_ns)
            # While a node runs, much may be due because a lock has held it.
            is_backlog = is_agreed and (starts or self._is_backlog) and found.has_backlog(wanted)
            excess = found.due if is_backlog else found.excess
        is_longer = agreed is not None and wanted.keeps(agreed)
        # Another node may have agreed to less meanwhile: only a start replaces that.
        if excess is None and not is_agreed and (starts or not is_longer):
            await agree(connection, wanted)
        keeps_all = excess is not None and (is_backlog or agreed is None)
        applied = RetentionPolicy() if keeps_all else wanted if excess is None else agreed
        assert applied is not None
        self.policy = replace(applied, requires_archive=wanted.requires_archive)
        self.excess, self._is_backlog, self._is_settled = excess, is_backlog, True
