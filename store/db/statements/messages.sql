-- Statements about messages, and about hashes and topics, which find them.

-- message_at --
-- The message ``m`` at a position ``k``. As a join, a plan that was made while a partition was
-- small would go on reading all of it when it is large; this one is always a probe of the index.
lateral (
    select n.* from storenode.messages n
    where n.ts = k.ts and n.hash = k.hash
      and n.ts >= %(low)b::bigint and n.ts <= %(high)b::bigint offset 0
) m

-- size --
-- The stored bytes of a message without its hash.
octet_length(m.head) + octet_length(m.payload) + octet_length(m.tail)

-- body --
-- The stored bytes of a message without its hash; ``most`` limits their size.
case when <messages.size> <= %(most)b::bigint then m.head || m.payload || m.tail end

-- data_columns --
-- The columns of a `Row`.
m.ts, m.hash, <messages.body>, <messages.size>

-- topic_columns --
-- The columns of a `Row`, and the key of its topic.
<messages.data_columns>, m.topic

-- id_columns --
-- The columns of a `Row` of which only the position is read.
m.ts, m.hash, null::bytea, 0

-- read_at --
-- The messages at some positions, in no order.
select {columns} from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join <messages.message_at>

-- locate --
-- Where hashes are, those of pruned messages included; the table has their first bytes.
select key, ts from storenode.hashes where key = any(%b::bigint[])

-- read_topic_names --
-- Names of topic keys.
select distinct key, pubsub_topic, content_topic from storenode.topics where key = any(%b::uuid[])

-- match_topics --
-- The keys of the topics that a filter selects; null if they are too many. A topic has a row in each
-- partition; four times as many rows are looked at. For a prefix that is a parameter Postgres takes
-- no index, for the span of texts that begin with it it does.
select case when count(*) <= 4 * %(most)s::bigint and count(distinct key) <= %(most)s::bigint
            then coalesce(array_agg(distinct key), '{{}}') end
from (select t.key from {source} where {condition} limit 4 * %(most)s::bigint + 1) matching

-- is_on_topics --
-- Whether a message is on a topic that a filter selects: a look at the topic of each row.
exists (select from storenode.topics t where t.key = m.topic and {condition} offset 0)

-- topic_spans --
-- Topics whose name lies in a span of names, which begins with a prefix: no topic is longer than
-- 1,024 bytes, which are 256 of the last character.
unnest(%(lows)s::text[]) as span(low)
cross join lateral (
    select * from storenode.topics
    where {column} >= span.low and {column} <= span.low || repeat(chr(1114111), 256) offset 0
) t

-- page_by_time --
-- A page in the order of time; with a filter of many topics, that of their keys.
select {columns} from storenode.messages m
where m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
  and (m.ts, m.hash) {beyond} (%(at_ts)b::bigint, %(at_hash)b::bytea){topics}
order by m.ts {way}, m.hash {way} limit %(limit)b::bigint

-- in_topic_order --
-- In the order of the index by topic, which begins each hash only: those that begin alike at one
-- time are put in order as they come. The first condition is the index's, the second is exact.
m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
  and (m.ts, substr(m.hash, 1, 7)) {beyond}=
      (%(at_ts)b::bigint, substr(%(at_hash)b::bytea, 1, 7))
  and (m.ts, m.hash) {beyond} (%(at_ts)b::bigint, %(at_hash)b::bytea)
order by m.ts {way}, substr(m.hash, 1, 7) {way}, m.hash {way}

-- page_of_topic --
-- A page of one topic.
select {columns} from storenode.messages m
where m.topic = (%(topics)b::uuid[])[1] and <messages.in_topic_order> limit %(limit)b::bigint

-- page_of_topics --
-- A page of several topics. Each topic gives its next few; what lies beyond the first topic to be cut off is not known
-- completely yet and waits for the next page. Those of the page are read where they were found: the
-- index has not all that puts them in order, so their rows had to be looked at already.
select {columns} from (
    with merged as materialized (
        select x.ts, x.hash, x.place, x.n from unnest(%(topics)b::uuid[]) as given(topic)
        cross join lateral (
            select n.*, row_number() over () as n from (
                select m.ts, m.hash, m.ctid as place from storenode.messages m
                where m.topic = given.topic and <messages.in_topic_order> limit %(each)b::bigint
            ) n
        ) x
    ), cut as (
        select ts, hash from merged where n = %(each)b::bigint
        order by ts {way}, hash {way} limit 1
    )
    select ts, hash, place from merged
    where not exists (select from cut)
       or (ts, hash) {until} (select ts, hash from cut)
    order by ts {way}, hash {way} limit %(limit)b::bigint
) k cross join lateral (
    select n.* from storenode.messages n
    where n.ts = k.ts and n.ctid = k.place and n.hash = k.hash
      and n.ts >= %(low)b::bigint and n.ts <= %(high)b::bigint offset 0
) m
order by m.ts {way}, m.hash {way}

-- read_newest --
-- The newest messages by time.
select ts, hash, content_digest from storenode.messages where ts <= %b::bigint
order by ts desc, hash desc limit %b::bigint

-- messages_of_batch --
-- Messages of batches. A probe of the index for each batch, whatever a plan was made for (see
-- `message_at`); a batch lies in few partitions.
lateral (
    select n.* from storenode.messages n
    where n.batch = k.batch and n.ts >= k.low and n.ts <= k.high offset 0
) m

-- page_in_commit_order --
-- A page of messages in commit order. Commits come in their order: each is sorted by itself, and
-- those beyond the limit are not read.
select {columns}, k.position
from (
    select * from unnest(%(batches)b::bigint[], %(lows)b::bigint[], %(highs)b::bigint[],
                         %(positions)b::bigint[]) as k(batch, low, high, position)
    order by position
) k
cross join <messages.messages_of_batch>
where true{topics}
  and (k.position, m.ts, m.hash)
      > (%(at_position)b::bigint, %(at_ts)b::bigint, %(at_hash)b::bytea)
order by k.position, m.ts, m.hash limit %(limit)b::bigint

-- read_batches --
-- All messages of some batches, for followers that are live.
select m.batch, m.topic, m.hash, m.head || m.payload || m.tail
from unnest(%(batches)b::bigint[], %(lows)b::bigint[], %(highs)b::bigint[]) as k(batch, low, high)
cross join <messages.messages_of_batch>
where true{topics}
order by m.ts, m.hash

-- joined_ids --
-- IDs joined into two values, whose columns are read without a call per row.
string_agg(int8send(m.ts), ''::bytea), string_agg(m.hash, ''::bytea)

-- joined_digests --
-- Content digests joined into one value.
string_agg(m.content_digest, ''::bytea)

-- read_ids_in --
-- A probe of the index for each span, whatever a plan was made for (see `message_at`): so rows come
-- in the order of the spans, and the limit ends the reading.
-- The index alone has the IDs; content digests take the rows.
select <messages.joined_ids>{content} from (
    select m.*
    from unnest(%(low_ts)b::bigint[], %(low_hash)b::bytea[],
                %(high_ts)b::bigint[], %(high_hash)b::bytea[])
        as k(low_ts, low_hash, high_ts, high_hash)
    cross join lateral (
        select n.ts, n.hash{column} from storenode.messages n
        where n.ts >= k.low_ts and n.ts <= k.high_ts
          and (n.ts, n.hash) >= (k.low_ts, k.low_hash)
          and (n.ts, n.hash) < (k.high_ts, k.high_hash)
        order by n.ts, n.hash offset 0
    ) m
    limit %(limit)b::bigint
) m

-- message_of_hash --
-- The message ``m`` with the hash of ``k``.
lateral (
    select distinct h.ts from storenode.hashes h
    where h.key = ('x' || encode(substr(k.hash, 1, 8), 'hex'))::bit(64)::bigint
) h
cross join lateral (
    select n.* from storenode.messages n where n.ts = h.ts and n.hash = k.hash offset 0
) m

-- read_ids_of_hashes --
-- IDs of the stored messages among some hashes.
select <messages.joined_ids>
from unnest(%(hashes)b::bytea[]) as k(hash) cross join <messages.message_of_hash>

-- read_ids_of_batches --
-- IDs and content digests of the messages of batches.
select <messages.joined_ids>, <messages.joined_digests>
from unnest(%(batches)b::bigint[], %(lows)b::bigint[], %(highs)b::bigint[]) as k(batch, low, high)
cross join lateral (
    select n.ts, n.hash, n.content_digest from storenode.messages n
    where n.batch = k.batch and n.ts >= k.low and n.ts <= k.high offset 0
) m

-- element --
-- What sums add for a message: `reconcile.ids.SyncIds.elements`.
int8send(m.ts) || m.hash || m.content_digest

-- read_added_elements --
-- The elements that commits have added to some hours, by hour.
select given.hour_ns, string_agg(added.element, ''::bytea)
from unnest(%(hours)s::bigint[]) as given(hour_ns)
cross join lateral (
    select <messages.element> as element from storenode.messages m
    where m.ts >= given.hour_ns and m.ts < given.hour_ns + 3600000000000
      and m.batch in (select batch from storenode.commits
                      where position > %(after)s::bigint and position <= %(until)s::bigint)
    offset 0
) as added
group by 1

-- read_elements --
-- Elements of the lattice sum of a range of time, by pages: nothing is as cheap as one long value.
select max(m.ts), string_agg(<messages.element>, ''::bytea) from (
    select ts, hash, content_digest from storenode.messages
    where ts >= %(ts)s::bigint and ts < %(high)s::bigint
      and (ts, hash) > (%(ts)s::bigint, %(hash)s::bytea)
    order by ts, hash limit %(limit)s::bigint
) as m

-- check_messages --
-- Messages behind a position, whether each has its row of hashes, and its row in the partition of
-- topics around it.
with k as materialized (
    select * from storenode.messages {sample}
    where {bounds} and (ts, hash) > (%s::bigint, %s::bytea) order by ts, hash limit %s::bigint
)
select k.ts, k.hash, k.topic, k.content_digest, k.head, k.payload, k.tail,
       exists (select from storenode.hashes h
               where h.ts = k.ts and h.key = ('x' || encode(substr(k.hash, 1, 8), 'hex'))::bit(64)::bigint),
       c.low, t.pubsub_topic, t.content_topic
from k left join unnest(%s::bigint[], %s::bigint[]) as c(low, last) on k.ts >= c.low and k.ts <= c.last
left join storenode.topics t on t.key = k.topic and t.ts >= c.low and t.ts <= c.last
order by k.ts, k.hash

-- may_be_held --
-- True if the message of a row `k` is not pruned: not behind the horizon, and a partition is there.
k.ts >= coalesce((select horizon_ns from storenode.store), 0)
    and exists (select from unnest(%s::bigint[], %s::bigint[]) as p(low, last)
                where k.ts >= p.low and k.ts <= p.last)

-- check_hashes --
-- Rows of hashes behind a position, and whether the message of each is lost.
with k as materialized (
    select key, ts from storenode.hashes {sample}
    where {bounds} and (key, ts) > (%s::bigint, %s::bigint) order by key, ts limit %s::bigint
)
select k.key, k.ts, not exists (
    select from storenode.messages m where m.ts = k.ts
    and m.hash >= int8send(k.key)
    and m.hash <= int8send(k.key) || decode(repeat('ff', 24), 'hex')
) and <messages.may_be_held>
from k order by k.key, k.ts

-- read_first --
-- The first timestamp in a range of time.
select min(ts) from storenode.messages where ts >= %s::bigint and ts <= %s::bigint

-- insert_messages --
-- Messages and their rows of `hashes`, as far as they are new.
with numbered as materialized (
    select array_agg(nextval('storenode.batch_seq')) as batches
    from generate_series(1::bigint, %(parts)b::bigint)
), stored as (
    insert into storenode.messages (ts, hash, topic, batch, content_digest, head, payload, tail)
    select ts, hash, topic, batches[part], content_digest, head, payload, tail
    from numbered, unnest(%(ts)b::bigint[], %(hash)b::bytea[], %(topic)b::uuid[],
                          %(content_digest)b::bytea[], %(head)b::bytea[], %(payload)b::bytea[],
                          %(tail)b::bytea[], %(part)b::bigint[])
        as given(ts, hash, topic, content_digest, head, payload, tail, part)
    order by ts, hash
    on conflict do nothing
    returning ts, hash, batch
), located as (
    insert into storenode.hashes (key, ts)
    select ('x' || encode(substr(hash, 1, 8), 'hex'))::bit(64)::bigint, ts from stored returning 1
)

-- next_batches --
-- Numbers for batches.
select nextval('storenode.batch_seq') from generate_series(1::bigint, %b::bigint)

-- read_hashes_of_batch --
-- Hashes of the messages of a batch.
select hash from storenode.messages
where batch = %b::bigint and ts between %b::bigint and %b::bigint

-- insert_topics --
-- Names of topic keys, once in each coarse partition.
insert into storenode.topics (key, ts, pubsub_topic, content_topic)
select * from unnest(%b::uuid[], %b::bigint[], %s::text[], %s::text[])
on conflict do nothing

-- copy_messages --
-- Messages, all of which are new.
copy storenode.messages (ts, hash, topic, batch, content_digest, head, payload, tail)
from stdin (format binary)

-- copy_hashes --
-- The rows of `hashes` of messages, all of which are new.
copy storenode.hashes (key, ts) from stdin (format binary)

-- write_canary --
-- A write that changes no row, and needs the rights and the locks that a batch of now needs: on the tables, on
-- the partitions of now, which are known to the planner, and on the commit order. Its record in the
-- log is committed as rows are.
with granted as (
    insert into storenode.messages select * from storenode.messages where false
), located as (
    update storenode.hashes set key = key where ts = {now} and key = 0
), row as (
    update storenode.messages set batch = batch where ts = {now} and hash = ''
), placed as materialized (
    select pg_advisory_xact_lock({commit_order})
)
select pg_logical_emit_message(true, 'storenode', '') from placed
