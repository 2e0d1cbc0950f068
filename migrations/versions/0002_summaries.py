"""Summaries of the history: count and XOR of the hashes per minute, hour and day.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
locks = "commits"

SCHEMA = "storenode"
PARTITIONS_LOCK = 0x73746F72 << 32 | 2
MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
RECORD_BYTES = 48
WORDS = ("x0", "x1", "x2", "x3")


def upgrade() -> None:
    # Neither partitions nor commits may change before the last statement: a writer of the version
    # before waits for its commit, and then fails, since its commit says nothing of summaries.
    op.execute(f"SELECT pg_advisory_xact_lock({PARTITIONS_LOCK})")
    add_columns()
    create_buckets()
    for partition in partitions_of_messages():
        summarize_minutes(partition)
    summarize_level(1, HOUR_NS)
    summarize_level(2, DAY_NS)
    op.execute(
        "UPDATE storenode.store SET folded_position ="
        " (SELECT coalesce(max(position), 0) FROM storenode.commits)"
    )


def add_columns() -> None:
    # What is committed already is in the buckets: its own summaries are never read.
    op.add_column(
        "commits",
        sa.Column("summary", sa.LargeBinary, nullable=False, server_default=""),
        schema=SCHEMA,
    )
    op.alter_column("commits", "summary", server_default=None, schema=SCHEMA)
    # Hashes cannot be compressed.
    op.execute(f"ALTER TABLE {SCHEMA}.commits ALTER COLUMN summary SET STORAGE EXTERNAL")
    op.create_check_constraint(
        "commits_summary_check",
        "commits",
        f"octet_length(summary) % {RECORD_BYTES} = 0",
        schema=SCHEMA,
    )
    op.add_column(
        "store",
        sa.Column("folded_position", sa.BigInteger, nullable=False, server_default="0"),
        schema=SCHEMA,
    )
    op.add_column("store", sa.Column("last_online_ns", sa.BigInteger), schema=SCHEMA)


def create_buckets() -> None:
    op.create_table(
        "buckets",
        sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        *(sa.Column(word, sa.BigInteger, nullable=False) for word in WORDS),
        schema=SCHEMA,
    )


def partitions_of_messages() -> list[str]:
    statement = sa.text(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = to_regclass(:parent) ORDER BY c.relname"
    )
    found = op.get_bind().execute(statement, {"parent": f"{SCHEMA}.messages"})
    return [name for (name,) in found]


def summarize_minutes(partition: str) -> None:
    """Summarise what one partition holds; an odd one may share a minute with another."""
    words = ", ".join(little_endian_word(number) for number in range(len(WORDS)))
    joined = ", ".join(f"{word} = held.{word} # excluded.{word}" for word in WORDS)
    op.execute(
        f"""
        INSERT INTO {SCHEMA}.buckets AS held (level, start_ns, count, {", ".join(WORDS)})
        SELECT 0, minute * {MINUTE_NS}, messages, {words} FROM (
            SELECT ts / {MINUTE_NS} AS minute, count(*) AS messages,
                   bit_xor(CAST('x' || encode(hash, 'hex') AS bit(256))) AS bits
            FROM {SCHEMA}."{partition}" GROUP BY 1
        ) AS summary
        ORDER BY minute
        ON CONFLICT (level, start_ns) DO UPDATE SET count = held.count + excluded.count, {joined}
        """  # noqa: S608 - constants, and a name from the catalog
    )


def little_endian_word(number: int) -> str:
    """Eight bytes of the 256 bits ``bits`` as a number whose first byte is the lowest."""
    octets = range(8 * number + 7, 8 * number - 1, -1)
    joined = " || ".join(f"substring(bits FROM {8 * octet + 1} FOR 8)" for octet in octets)
    return f"CAST(CAST({joined} AS bit(64)) AS bigint)"


def summarize_level(level: int, length_ns: int) -> None:
    """Summarise the level below."""
    words = ", ".join(f"bit_xor({word})" for word in WORDS)
    op.execute(
        f"""
        INSERT INTO {SCHEMA}.buckets (level, start_ns, count, {", ".join(WORDS)})
        SELECT {level}, start_ns / {length_ns} * {length_ns}, sum(count), {words}
        FROM {SCHEMA}.buckets WHERE level = {level - 1} GROUP BY 2 ORDER BY 2
        """  # noqa: S608 - constants
    )
