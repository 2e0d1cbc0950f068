"""``GetCausalHistory`` against a recursive SQL query by hand, with the same data.

Cases: a chain of 10,000 messages, and a graph of 100,000 on eight branches, where each message
merges another branch. Half a million other messages lie around them in time. The client parses
every page. Two baselines, both fetched by psycopg in binary: the query on the node's own tables,
and on plain tables made for it, whose primary keys are the ID's key and the hash.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import grpc

from bench.data import PUBSUB_TOPIC, Row, rows
from bench.support import Bench, bench_node, options, publish, report, seconds, settle
from store.db.arrays import register, uuids
from storenode.message.hashing import message_hash
from storenode.sds.codec import encode, sds_key
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import GetCausalHistoryRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

CHAIN: Final = 10_000
GRAPH: Final = 100_000
BRANCHES: Final = 8
CONTENT_BYTES: Final = 200
REPEATS: Final = 5

_OWN_TABLES: Final = """
with recursive walk(key) as (
    select unnest(%b::uuid[])
    union
    select unnest(s.parent_keys) from walk join storenode.sds s on s.key = walk.key
)
select s.message_id, m.ts, m.hash, m.head || m.payload || m.tail
from walk join storenode.sds s on s.key = walk.key
join storenode.messages m on m.ts = s.ts and m.hash = s.hash
"""

_PLAIN_TABLES: Final = """
create table plain_sds as select key, hash, message_id, parent_keys from storenode.sds;
alter table plain_sds add primary key (key);
create table plain as
select m.ts, m.hash, t.pubsub_topic, t.content_topic, m.payload
from storenode.messages m join storenode.topics t on t.key = m.topic order by m.ts, m.hash;
alter table plain add primary key (hash);
"""

_ON_PLAIN_TABLES: Final = """
with recursive walk(key) as (
    select unnest(%b::uuid[])
    union
    select unnest(s.parent_keys) from walk join plain_sds s on s.key = walk.key
)
select s.message_id, m.ts, m.hash, m.pubsub_topic, m.content_topic, m.payload
from walk join plain_sds s on s.key = walk.key join plain m on m.hash = s.hash
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Messages of one channel, and where a walk through all of them starts."""

    channel: str
    messages: list[Row]
    heads: list[tuple[str, bytes]]


def make_case(channel: str, count: int, branches: int, around: list[Row]) -> Case:
    """Spread ``count`` messages evenly over the time of the others."""
    rng = random.Random(count)
    first, span = around[0].timestamp, around[-1].timestamp - around[0].timestamp
    topic = f"/bench/1/{channel}/proto"
    tips: list[tuple[str, bytes]] = []
    messages: list[Row] = []
    for number in range(count):
        branch = number if number < branches else rng.randrange(branches)
        parents = tips[branch : branch + 1]
        if parents and branches > 1:
            parents.append(tips[(branch + rng.randrange(1, branches)) % branches])
        message_id = rng.randbytes(32).hex()
        payload = encode(
            channel,
            message_id,
            sender_id=f"participant-{branch}",
            lamport=number + 1,
            parents=parents,
            content=rng.randbytes(CONTENT_BYTES),
        )
        timestamp = first + number * span // count + rng.randrange(1, 1_000)
        digest = message_hash(PUBSUB_TOPIC, payload, topic, None, timestamp)
        tips[branch : branch + 1] = [(message_id, digest)]
        messages.append(Row(timestamp, topic, payload))
    return Case(channel, messages, tips)


def through_node(channel: grpc.Channel, case: Case) -> None:
    """Walk through the node, as a client."""
    request = GetCausalHistoryRequest(
        channel_id=case.channel,
        heads=[
            HistoryEntry(message_id=message_id, retrieval_hint=digest)
            for message_id, digest in case.heads
        ],
        prefer_proven=True,
    )
    call = StoreStub(channel).GetCausalHistory
    found = sum(len(page.messages) for page in call(request))
    assert found == len(case.messages), f"{found} of {len(case.messages)} messages were found"


def by_hand(bench: Bench, case: Case, statement: str) -> None:
    """Walk by SQL."""
    channel = case.channel.encode()
    keys = uuids([sds_key(channel, message_id.encode()) for message_id, _ in case.heads])
    with bench.connection.cursor(binary=True) as cursor:
        found = len(cursor.execute(statement, (keys,), prepare=True).fetchall())
    assert found == len(case.messages), f"{found} of {len(case.messages)} messages were found"


def compare(bench: Bench, channel: grpc.Channel, case: Case) -> None:
    """Measure all sides in turn; the best of five each."""
    runs = [
        (
            seconds(lambda: through_node(channel, case)),
            seconds(lambda: by_hand(bench, case, _OWN_TABLES)),
            seconds(lambda: by_hand(bench, case, _ON_PLAIN_TABLES)),
        )
        for _ in range(REPEATS)
    ]
    node, own, plain = (min(column) for column in zip(*runs, strict=True))
    for tables, baseline in (("node", own), ("plain", plain)):
        report(
            benchmark="causal_history",
            case=case.channel,
            messages=len(case.messages),
            baseline_tables=tables,
            ours_s=node,
            baseline_s=baseline,
            ratio=baseline / node,
        )


def main() -> None:
    """Measure both cases."""
    around = rows(options(__doc__).messages)
    cases = [
        make_case("chain", CHAIN, 1, around),
        make_case("graph", GRAPH, BRANCHES, around),
    ]
    with bench_node("--max-clock-drift", "off") as bench:
        everything = [row for case in cases for row in case.messages] + around
        publish(bench, sorted(everything, key=lambda row: row.timestamp))
        bench.connection.execute(_PLAIN_TABLES)
        register(bench.connection)
        settle(bench)
        with bench.channel() as channel:
            for case in cases:
                compare(bench, channel, case)
