"""The validity checks of archived messages, as Spark SQL conditions on a row.

A missing value is never right: conditions are true where they cannot be decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.limits import SHARD_PARTITIONS
from store.pipeline.reading import NO_SHARD
from storenode.message.limits import HASH_BYTES, MAX_TOPIC_BYTES

WRONG_HASH: Final = "hash is not that of the message"
WRONG_WORDS: Final = "h0 to h3 are not the hash"
WRONG_PLACE: Final = "in the directory of another shard"
NOT_ELIGIBLE: Final = "no message that a node stores"
TOO_LONG: Final = "a topic is longer than may be"

CHECKED: Final = (
    "ts",
    "hash",
    "h0",
    "h1",
    "h2",
    "h3",
    "pubsub_topic",
    "content_topic",
    "payload",
    "meta",
    "ephemeral",
    "shard",
)
"""The columns that are checked."""

_TOPICS: Final = ("pubsub_topic", "content_topic")
_NUMBER: Final = "(0|[1-9][0-9]{0,4})"
_SHARD_TOPIC: Final = rf"\A/waku/2/rs/{_NUMBER}/{_NUMBER}\z"
_MAX_UINT16: Final = 0xFFFF


def row_faults() -> Mapping[str, Column]:
    """Return a condition for each kind of fault; it is true for the rows that have it."""
    return {
        NOT_ELIGIBLE: _unless(_is_eligible()),
        WRONG_HASH: _unless(F.sha2(_hashed(), 256) == F.lower(F.hex("hash"))),
        WRONG_WORDS: _unless(
            (_words_hex() == F.hex("hash")) & (F.octet_length("hash") == HASH_BYTES)
        ),
        TOO_LONG: _unless(_all_topics(lambda name: F.octet_length(name) <= MAX_TOPIC_BYTES)),
        WRONG_PLACE: _unless(_shard_of_topic() == F.col("shard")),
    }


def count_faults(rows: DataFrame) -> tuple[int, dict[str, int]]:
    """Count the rows, and those that have each kind of fault, if there are any."""
    counted = [F.count_if(fault).alias(kind) for kind, fault in row_faults().items()]
    (found,) = rows.agg(F.count(F.lit(1)).alias("rows"), *counted).collect()
    return found["rows"], {kind: found[kind] for kind in row_faults() if found[kind]}


def _unless(condition: Column) -> Column:
    return ~F.coalesce(condition, F.lit(False))


def _is_eligible() -> Column:
    lasting = ~F.coalesce("ephemeral", F.lit(False))
    return (F.col("ts") > 0) & lasting & _all_topics(_is_topic)


def _is_topic(name: str) -> Column:
    whole = F.is_valid_utf8(name) & (F.octet_length(name) > 0)
    return whole & ~F.contains(name, F.lit("\0"))


def _all_topics(condition: Callable[[str], Column]) -> Column:
    first, second = map(condition, _TOPICS)
    return first & second


def _hashed() -> Column:
    """Return the bytes whose SHA-256 is the hash (14/WAKU2-MESSAGE)."""
    time = F.unhex(F.lpad(F.hex("ts"), 16, "0"))
    topics = [F.col(name).cast("binary") for name in _TOPICS]
    meta = F.coalesce("meta", F.lit(b""))
    return F.concat(topics[0], F.col("payload"), topics[1], meta, time)


def _words_hex() -> Column:
    """Return the words as the digits of the hash, to whose bytes they are little-endian."""
    words = (F.lpad(F.hex(f"h{place}"), 16, "0") for place in reversed(range(4)))
    return F.regexp_replace(F.reverse(F.concat(*words)), "(.)(.)", "$2$1")


def _shard_of_topic() -> Column:
    """Return what `store.pipeline.reading.shard_of` does."""
    cluster, shard = (
        F.regexp_extract("pubsub_topic", _SHARD_TOPIC, group).try_cast("int") for group in (1, 2)
    )
    is_static = (cluster <= _MAX_UINT16) & (shard <= _MAX_UINT16)
    number = F.when(is_static, shard % SHARD_PARTITIONS).otherwise(NO_SHARD)
    return F.when(F.col("pubsub_topic").isNotNull(), number)
