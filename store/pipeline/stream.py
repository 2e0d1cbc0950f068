"""Where a micro-batch of a stream ends, and what is in it.

A batch is the commits behind one position up to another. They name the times that their messages
span, so the partitions that they cannot be in are not looked at.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg

from store.pipeline.errors import PipelineError
from store.pipeline.limits import DAY_NS, STREAM_COMMITS
from store.pipeline.slices import Slice

Connection = psycopg.Connection[Any]
Spans = list[Slice]

_END: Final[LiteralString] = """
select coalesce(max(position), %(start)s) from (
    select position, sum(messages) over (order by position) - messages as before
    from (select position, messages from storenode.export_commits where position > %(start)s
          order by position limit %(commits)s) as following
) as counted where before < %(rows)s
"""
_LOST: Final[LiteralString] = """
select (select coalesce(max(position), 0) from storenode.export_commits) < %s
"""
_SPANS: Final[LiteralString] = """
select min_ts / %(day)s as low, max_ts / %(day)s as high, sum(messages)::bigint
from storenode.export_commits where position > %(start)s and position <= %(end)s
group by 1, 2 order by 1, 2
"""


def end_of_batch(connection: Connection, start: int, rows: int) -> int:
    """Return the position at which a batch of about so many messages after ``start`` ends.

    That of the first commit that fills it, and ``start`` when nothing was committed since.

    Raises:
        PipelineError: the database has lost the commits that were read already.
    """
    ((lost,),) = connection.execute(_LOST, (start,)).fetchall()
    if lost:
        raise PipelineError(
            f"The database has no commit {start} any more, up to which the stream was read: it is"
            " another database, or an older state of it; begin with a new checkpoint."
        )
    given = {"start": start, "rows": rows, "commits": STREAM_COMMITS}
    ((end,),) = connection.execute(_END, given).fetchall()
    return int(end)


def spans_between(connection: Connection, start: int, end: int) -> Spans:
    """Slices of whole UTC days that hold the messages committed behind ``start`` up to ``end``.

    A commit may span decades with a handful of messages: what overlaps is one slice, in which the
    index of batches finds them.
    """
    given = {"start": start, "end": end, "day": DAY_NS}
    spans: Spans = []
    for low, high, count in connection.execute(_SPANS, given):
        last = spans[-1] if spans else None
        if last is not None and low * DAY_NS < last.high_ns:
            spans[-1] = Slice(
                last.low_ns, max(last.high_ns, (high + 1) * DAY_NS), last.rows + count
            )
        else:
            spans.append(Slice(low * DAY_NS, (high + 1) * DAY_NS, count))
    return spans
