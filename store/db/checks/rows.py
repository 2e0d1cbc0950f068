"""Comparing rows with each other: every message with what finds it, and the reverse.

Rows come in chunks, each by one statement that joins what must agree, so that a check of any size
needs little memory, sees no transaction by halves, and neither writers nor retention wait for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection

from store.db.checks.findings import Findings
from store.db.schema.names import FINE_TABLE
from store.db.statements import SQL
from store.domain.audit import RowFault, SdsRow, StoredMessage, audit, sds_row
from store.domain.partitioning import UNBOUNDED_LOW, Bounds, Cover

Connection = PsycopgConnection[Any]
Key = tuple[Any, ...]
Progress = Callable[[str, int], None]
"""Told the table and how many rows of it were compared so far."""

MESSAGE_CHUNK_ROWS: Final = 200
"""Messages read at once: about 30 MB when all of them have the largest size."""

INDEX_CHUNK_ROWS: Final = 2_000
MAX_KNOWN_TOPICS: Final = 65_536
"""Rows of ``topics`` that are remembered as right."""

_KEYS: Final = {"messages": "ts, hash", "hashes": "key, ts", "sds": "key, ts, hash"}
_CASTS: Final = {
    "messages": ("bigint", "bytea"),
    "hashes": ("bigint", "bigint"),
    "sds": ("uuid", "bigint", "bytea"),
}
_NO_KEY: Final = "00000000-0000-0000-0000-000000000000"
_FIRST: Final[dict[str, Key]] = {
    "messages": (UNBOUNDED_LOW, b""),
    "hashes": (-(1 << 63), UNBOUNDED_LOW),
    "sds": (_NO_KEY, UNBOUNDED_LOW, b""),
}
"""Positions before the first row of each table."""


_LOOKUPS: Final[dict[str, LiteralString]] = {
    "messages": SQL.messages.check_messages,
    "hashes": SQL.messages.check_hashes,
    "sds": SQL.sds.check_payloads,
}
"""The statements that read what is compared with one row of each table."""


@dataclass(frozen=True)
class StoredTimes:
    """The timestamps of which every message is stored: with a partition, from the horizon on."""

    fine: Cover
    horizon_ns: int

    def contains(self, ts: int) -> bool:
        """Return True if a message with this timestamp cannot have been pruned."""
        return ts >= self.horizon_ns and self.fine.find(ts) is not None


class RowCheck:
    """Compares the rows of the tables that are partitioned by time.

    ``stored`` reads which timestamps have all their messages; it is asked again before a message is
    called lost, since retention may work meanwhile. ``topics`` are the bounds of that table's
    partitions.
    """

    def __init__(
        self,
        connection: Connection,
        findings: Findings,
        *,
        stored: Callable[[], StoredTimes],
        topics: Cover,
        progress: Progress,
    ) -> None:
        self._connection = connection
        self._findings = findings
        self._stored = stored
        self._topics = topics
        self._progress = progress
        self._known: set[tuple[bytes, int]] = set()

    def run(self, table: str, partitions: Iterable[Bounds], share: float | None) -> int:
        """Compare a table's rows and return their number.

        ``share`` (0 to 1) takes that part of each partition's pages, at random; None: all rows.
        """
        done = 0
        compare = {
            "messages": self._messages,
            "hashes": self._hashes,
            "sds": self._sds,
        }[table]
        for bounds in partitions:
            for rows in self._chunks(table, bounds, share):
                compare(rows)
                done += len(rows)
                self._progress(table, done)
        return done

    def _chunks(
        self, table: str, bounds: Bounds, share: float | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        size, keys, casts = _chunk_rows(table), _KEYS[table], _CASTS[table]
        condition = bounds.condition("ts")
        if share is not None:
            statement = SQL.messages.check_sample.format(
                keys=keys, table=table, percent=100 * share, bounds=condition
            )
            with self._connection.cursor(binary=True) as cursor:
                sample = sorted(cursor.execute(statement.encode(), prepare=False).fetchall())
            arrays = ", ".join(f"%s::{cast}[]" for cast in casts)
            given = SQL.messages.check_given.format(arrays=arrays, keys=keys)
            for start in range(0, len(sample), size):
                columns = [
                    list(column) for column in zip(*sample[start : start + size], strict=True)
                ]
                yield self._looked_up(table, given, columns)
            return
        following = SQL.messages.check_following.format(
            keys=keys,
            table=table,
            bounds=condition,
            after=", ".join(f"%s::{cast}" for cast in casts),
            rows=size,
        )
        after = _FIRST[table]
        while True:
            rows = self._looked_up(table, following, after)
            if rows:
                yield rows
            if len(rows) < size:
                return
            after = rows[-1][: len(casts)]

    def _looked_up(
        self, table: str, keys: str, parameters: Sequence[object]
    ) -> list[tuple[Any, ...]]:
        statement = f"with k as materialized ({keys}) {_LOOKUPS[table]}"
        with self._connection.cursor(binary=True) as cursor:
            return cursor.execute(statement.encode(), parameters, prepare=False).fetchall()

    def _messages(self, rows: Sequence[tuple[Any, ...]]) -> None:
        indexed: dict[tuple[int, bytes], SdsRow] = {}
        topics: dict[tuple[bytes, int], tuple[tuple[str, str], str]] = {}
        for ts, digest, topic, content_digest, head, payload, tail, has_hash in rows:
            name = _name(ts, digest)
            row_of = StoredMessage(ts, digest, topic.bytes, content_digest, head, payload, tail)
            found = audit(row_of)
            for fault in found.faults:
                self._findings.add(fault, FINE_TABLE, name)
            if not has_hash:
                self._findings.add(RowFault.NO_HASH_ROW, "hashes", name)
            partition = self._topics.find(ts)
            if found.names is not None and RowFault.TOPIC not in found.faults and partition:
                topics.setdefault((topic.bytes, partition.low), (found.names, name))
            row = sds_row(payload)
            if row is not None:
                indexed[ts, digest] = row
        self._compare_topics(topics)
        self._compare_sds(indexed)

    def _compare_topics(self, wanted: dict[tuple[bytes, int], tuple[tuple[str, str], str]]) -> None:
        unknown = {each: wanted[each] for each in wanted.keys() - self._known}
        for low in {low for _, low in unknown}:
            bounds = self._topics.find(low)
            assert bounds is not None
            keys = [key.hex() for key, of in unknown if of == low]
            with self._connection.cursor(binary=True) as cursor:
                cursor.execute(
                    SQL.messages.check_topics, (keys, low, bounds.high - 1), prepare=False
                )
                found = {key.bytes: (pubsub, content) for key, _, pubsub, content in cursor}
            for (key, of), (names, example) in unknown.items():
                if of != low:
                    continue
                if key not in found:
                    self._findings.add(RowFault.NO_TOPIC_ROW, "topics", example)
                elif found[key] != names:
                    self._findings.add(RowFault.WRONG_TOPIC_ROW, "topics", example)
        if len(self._known) > MAX_KNOWN_TOPICS:
            self._known.clear()
        self._known.update(unknown)

    def _compare_sds(self, wanted: dict[tuple[int, bytes], SdsRow]) -> None:
        if not wanted:
            return
        given = (
            [row.key.hex() for row in wanted.values()],
            [ts for ts, _ in wanted],
            [digest for _, digest in wanted],
        )
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(SQL.sds.check_rows, given, prepare=False)
            found = {(ts, digest): _sds_row(columns) for ts, digest, *columns in cursor}
        for key, row in wanted.items():
            if key not in found:
                self._findings.add(RowFault.NO_SDS_ROW, "sds", _name(*key))
            elif found[key] != row:
                self._findings.add(RowFault.WRONG_SDS_ROW, "sds", _name(*key))

    def _hashes(self, rows: Sequence[tuple[Any, ...]]) -> None:
        lost = [(ts, key.to_bytes(8, signed=True)) for key, ts, is_stored in rows if not is_stored]
        self._report_lost(RowFault.LOST_MESSAGE, "hashes", lost)

    def _sds(self, rows: Sequence[tuple[Any, ...]]) -> None:
        lost = [(ts, digest) for _, ts, digest, payload in rows if payload is None]
        self._report_lost(RowFault.LOST_SDS_MESSAGE, "sds", lost)
        for key, ts, digest, payload in rows:
            row = None if payload is None else sds_row(payload)
            if payload is not None and (row is None or row.key != key.bytes):
                self._findings.add(RowFault.STRANGE_SDS_ROW, "sds", _name(ts, digest))

    def _report_lost(self, fault: RowFault, table: str, lost: list[tuple[int, bytes]]) -> None:
        if not lost:
            return
        stored = self._stored()
        for ts, digest in lost:
            if stored.contains(ts):
                self._findings.add(fault, table, _name(ts, digest))


def _chunk_rows(table: str) -> int:
    return MESSAGE_CHUNK_ROWS if table == FINE_TABLE else INDEX_CHUNK_ROWS


def _sds_row(columns: Sequence[Any]) -> SdsRow:
    key, channel_key, channel, message_id, sender, lamport, keys, ids, hints, proof = columns
    return SdsRow(
        key.bytes,
        channel_key.bytes,
        channel,
        message_id,
        sender,
        lamport,
        tuple(each.bytes for each in keys),
        tuple(ids),
        tuple(hints),
        proof,
    )


def _name(ts: int, digest: bytes) -> str:
    return f"{digest.hex()} at {ts}"
