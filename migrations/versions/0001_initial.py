"""The initial schema.

Revision ID: 0001_initial

The revision of a migration is the name of its file. ``docs/upgrading.md`` has the rules for the
migrations that follow, and ``docs/database.md`` says what each table is for.
"""

from typing import Final

from alembic import op

revision = "0001_initial"
down_revision = None

# `alter column … set storage external`: payloads are mostly encrypted, and hashes and sums are
# random, so that trying to compress them costs time and saves nothing.
_STORE: Final = """
create table storenode.store (
    store_id uuid primary key default gen_random_uuid(),
    created_at timestamptz not null default clock_timestamp(),
    horizon_ns bigint not null default 0,
    -- The limits that retention has last applied or an operator has confirmed; 0: without limit,
    -- null: none yet.
    retention_ns bigint,
    retention_bytes bigint,
    folded_position bigint not null default 0,
    last_online_ns bigint,
    -- The key under which cursors of `Follow` are encrypted. Two random UUIDs have 244 random bits
    -- of a cryptographic generator.
    cursor_key bytea not null
        default sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
);
create unique index store_one_row_idx on storenode.store ((true));
insert into storenode.store default values;
"""

_MESSAGES: Final = """
create sequence storenode.batch_seq;
create table storenode.messages (
    ts bigint not null,
    batch bigint not null,
    topic uuid not null,
    hash bytea not null,
    content_digest bytea not null,
    head bytea not null,
    payload bytea not null,
    tail bytea not null,
    primary key (ts, hash)
) partition by range (ts);
create index messages_topic_idx on storenode.messages (topic, ts, substr(hash, 1, 7));
create index messages_batch_idx on storenode.messages (batch);
alter table storenode.messages alter column payload set storage external;

-- `key`: eight bytes of the hash; not unique, since rows outlive messages, which may come back.
create table storenode.hashes (
    key bigint not null,
    ts bigint not null
) partition by range (ts);
create index hashes_key_idx on storenode.hashes (key);

create table storenode.topics (
    key uuid not null,
    ts bigint not null,
    pubsub_topic text collate "C" not null,
    content_topic text collate "C" not null,
    primary key (key, ts)
) partition by range (ts);
create index topics_pubsub_idx on storenode.topics (pubsub_topic);
create index topics_content_idx on storenode.topics (content_topic);
"""

_SDS: Final = """
create table storenode.sds (
    key uuid not null,
    channel_key uuid not null,
    ts bigint not null,
    hash bytea not null,
    channel bytea not null,
    message_id bytea not null,
    sender bytea not null,
    lamport bigint,
    parent_keys uuid[] not null,
    parent_ids bytea[] not null,
    parent_hints bytea[] not null,
    proof boolean not null,
    primary key (key, ts, hash),
    constraint sds_parents_check check (
        cardinality(parent_keys) = cardinality(parent_ids)
        and cardinality(parent_keys) = cardinality(parent_hints))
) partition by range (ts);
create index sds_channel_idx on storenode.sds (channel_key, ts, substr(hash, 1, 7));
create index sds_time_idx on storenode.sds using brin (ts) with (pages_per_range = 32);
create index sds_proven_idx on storenode.sds (key) where proof;

create table storenode.missing_parents (
    channel_key uuid not null,
    ts bigint not null,
    parent_key uuid not null,
    primary key (channel_key, ts, parent_key)
);
create index missing_parents_idx on storenode.missing_parents (parent_key);
"""

_COMMITS: Final = """
create sequence storenode.position_seq;
create table storenode.commits (
    position bigint primary key,
    batch bigint not null,
    token bigint not null,
    messages integer not null,
    min_ts bigint not null,
    max_ts bigint not null,
    topics uuid[],
    source text not null,
    committed_at timestamptz not null default clock_timestamp(),
    summary bytea not null,
    claims bytea not null,
    constraint commits_summary_check check (octet_length(summary) % 48 = 0),
    constraint commits_claims_check check (octet_length(claims) % 24 = 0)
) partition by range (position);
alter table storenode.commits alter column summary set storage external;
alter table storenode.commits alter column claims set storage external;
create table storenode.commits_0 partition of storenode.commits for values from (0) to (1048576);
create table storenode.commits_1 partition of storenode.commits
    for values from (1048576) to (2097152);
"""

_BUCKETS: Final = """
create table storenode.buckets (
    level smallint not null,
    start_ns bigint not null,
    count bigint not null,
    x0 bigint not null,
    x1 bigint not null,
    x2 bigint not null,
    x3 bigint not null,
    lattice bytea,
    lattice_count bigint,
    primary key (level, start_ns),
    constraint buckets_lattice_check check (
        octet_length(lattice) = 2048 and (lattice is null) = (lattice_count is null))
);
alter table storenode.buckets alter column lattice set storage external;

create table storenode.archived (
    start_ns bigint primary key,
    count bigint not null,
    x0 bigint not null,
    x1 bigint not null,
    x2 bigint not null,
    x3 bigint not null,
    position bigint not null,
    archive text not null,
    archived_at timestamptz not null default clock_timestamp()
);
"""

_PEERS: Final = """
create table storenode.unread (
    hash bytea primary key,
    ts bigint not null,
    content_digest bytea not null,
    needed integer not null,
    stores text[] not null default '{}',
    began_at timestamptz not null default clock_timestamp(),
    expired_at timestamptz,
    constraint unread_state_check check (cardinality(stores) < needed)
);
-- Rows come and go by the thousand: what they leave behind is vacuumed early, and most updates find
-- room on the page of their row.
alter table storenode.unread set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
                                  autovacuum_analyze_scale_factor = 0.05);

create table storenode.coverage (
    store_id text not null,
    start_ns bigint not null,
    end_ns bigint not null,
    compared_ns bigint not null,
    keyed boolean not null,
    missing_here bigint not null,
    missing_there bigint not null,
    count bigint not null,
    fingerprint bytea not null,
    primary key (store_id, start_ns, end_ns),
    constraint coverage_check check (start_ns < end_ns and octet_length(fingerprint) = 32)
);

create table storenode.online (
    start_ns bigint not null,
    resumed boolean not null,
    end_ns bigint not null,
    primary key (start_ns, resumed),
    constraint online_check check (start_ns <= end_ns)
);
"""

_VIEWS: Final = """
-- `tail` is what follows the payload in the frame: all other fields, and the pubsub topic.
create view storenode.export_messages as
    select ts, hash, topic, batch, payload, tail, content_digest, pubsub_topic, content_topic
    from storenode.messages left join (select distinct on (key) key, pubsub_topic, content_topic
    from storenode.topics) names on key = topic;
create view storenode.export_sds as
    select ts, hash, channel, message_id, sender, lamport, parent_ids, parent_hints
    from storenode.sds;
create view storenode.export_commits as
    select position, batch, token, messages, min_ts, max_ts, source, committed_at, summary
    from storenode.commits;
create view storenode.export_buckets as
    select level, start_ns, count, x0, x1, x2, x3 from storenode.buckets;
create view storenode.export_store as
    select store_id, horizon_ns, folded_position,
           (select coalesce(max(position), 0) from storenode.commits) as position
    from storenode.store;
"""


def upgrade() -> None:
    """Create all tables, sequences and views."""
    for statements in (_STORE, _MESSAGES, _SDS, _COMMITS, _BUCKETS, _PEERS, _VIEWS):
        op.execute(statements)
