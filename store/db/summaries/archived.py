"""Whether an archive holds what is to be dropped.

A job of the pipeline notes in ``storenode.archived`` what an hour was when the archive held exactly
that. The note is believed as long as it agrees with the hour's bucket, so nobody has to take it
away when a message arrives late.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection

from store.db.summaries.deltas import HOUR_NS
from store.domain.partitioning import UNBOUNDED_HIGH, UNBOUNDED_LOW
from store.domain.retention import Partition
from storenode.message.limits import NS_PER_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_HOURS: Final[LiteralString] = """
    select start_ns from storenode.buckets held
    where level = 1 and start_ns > %(low)s::bigint and start_ns < %(high)s::bigint
      and (count, x0, x1, x2, x3) <> (0, 0, 0, 0, 0)
      and not exists (
          select from storenode.archived noted
          where noted.start_ns = held.start_ns
            and (noted.count, noted.x0, noted.x1, noted.x2, noted.x3)
              = (held.count, held.x0, held.x1, held.x2, held.x3))
"""
# An hour that a commit is about which is not folded yet is not what its bucket says.
_NOT_ARCHIVED: Final[LiteralString] = f"""
select count(*), min(start_ns) from (
    {_HOURS}
    union all
    select greatest(min_ts, %(low)s::bigint) from storenode.commits
    where position > (select folded_position from storenode.store)
      and max_ts > %(low)s::bigint and min_ts < %(high)s::bigint
) as unarchived
"""
_STATE: Final[LiteralString] = f"""
select count(*), coalesce(min(start_ns), 0)::bigint,
       (select coalesce(max(start_ns), 0)::bigint from storenode.archived)
from ({_HOURS}) as unarchived
"""


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Hours that are over and that no archive was seen to hold as they are now.

    ``oldest_unarchived_ns``: where the first of them begins, 0 if there is none.
    ``archived_until_ns``: where the newest hour ends that was marked as archived, 0 if none was.
    """

    unarchived_hours: int
    oldest_unarchived_ns: int
    archived_until_ns: int


class NotArchived(Exception):
    """A partition must stay; the text says why, and what to do."""


async def require_archived(connection: AsyncConnection[Any], partition: Partition) -> None:
    """Make sure that every hour with messages of a partition is archived as it is now.

    To be sure until the end of a transaction, nobody may be able to write to the partition, and
    everything must be folded.

    Raises:
        NotArchived: an hour is not.
    """
    bounds = partition.bounds
    low = max(bounds.low, UNBOUNDED_LOW + HOUR_NS) - HOUR_NS
    given = {"low": low, "high": min(bounds.high, UNBOUNDED_HIGH - 1)}
    ((hours, first_ns),) = await (await connection.execute(_NOT_ARCHIVED, given)).fetchall()
    if hours:
        moment = _EPOCH + timedelta(seconds=first_ns // NS_PER_S)
        raise NotArchived(
            f"partition {partition.name} stays, since it is not archived in full"
            f" (hours not archived: {hours}, the first {moment:%Y-%m-%dT%H}:00Z):"
            " run `storenode pipeline archive`"
        )


async def read_archive_state(connection: AsyncConnection[Any], now_ns: int) -> ArchiveState:
    """How far archives have come; what is not folded yet is not counted.

    Raises `psycopg.Error`.
    """
    given = {"low": UNBOUNDED_LOW, "high": now_ns - HOUR_NS + 1}
    ((hours, oldest_ns, newest_ns),) = await (await connection.execute(_STATE, given)).fetchall()
    return ArchiveState(hours, oldest_ns, newest_ns + HOUR_NS if newest_ns else 0)
