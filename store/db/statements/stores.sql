-- Statements about the row of the store, and its small tables: online, coverage, unread.

-- read_summary --
-- What is stored: count, horizon, first and last timestamp.
select <buckets.messages>, horizon_ns,
       (select ts from storenode.messages order by ts, hash limit 1),
       (select ts from storenode.messages order by ts desc, hash desc limit 1)
from storenode.store

-- read_folded --
-- The position up to which commits are folded, and the horizon.
select folded_position, horizon_ns from storenode.store

-- check_folded --
-- The position up to which commits are folded, where that is beyond the newest that was given out.
select 'folded beyond the newest commit', 'store',
       format('folded up to %s, committed up to %s', folded_position, last_value)
from storenode.store cross join storenode.position_seq where folded_position > last_value

-- set_folded --
-- Move the position up to which commits are folded.
update storenode.store set folded_position = %s

-- read_size --
-- The newest position that was given out, the horizon, and the size of the summaries.
select last_value, coalesce((select horizon_ns from storenode.store), 0),
       pg_total_relation_size('storenode.buckets') from storenode.position_seq

-- raise_horizon --
-- Raise the horizon.
update storenode.store set horizon_ns = greatest(horizon_ns, %s)

-- check_count --
-- The number of rows, unless it is one.
select 'wrong store', 'store', format('%s rows instead of one', count(*)) from storenode.store
having count(*) <> 1

-- check_unread --
-- One statement sees one snapshot: a message and its unread event come and go together.
select case when m.hash is null then 'unread event without its message'
            else 'store that has confirmed twice' end,
       'unread', format('%s at %s', encode(u.hash, 'hex'), u.ts)
from storenode.unread u left join storenode.messages m
  on m.ts = u.ts and m.hash = u.hash and m.content_digest = u.content_digest
where m.hash is null
   or cardinality(u.stores) > (select count(distinct store) from unnest(u.stores) as s(store))
order by u.hash

-- count_unread --
-- The number of rows of unread events.
select count(*) from storenode.unread

-- read_agreed --
-- The limits of retention that the store has agreed to.
select retention_ns, retention_bytes from storenode.store

-- lower_horizon --
-- Lower the horizon.
update storenode.store set horizon_ns = least(horizon_ns, %s)

-- agree --
-- Set the limits of retention that the store has agreed to. A standby need not have them: what a
-- failover loses is agreed to, or asked for, once more.
update storenode.store set retention_ns = %s, retention_bytes = %s
from (select set_config('synchronous_commit', 'local', true)) as committing

-- read_online --
-- When a node was last online, in nanoseconds.
select coalesce(last_online_ns, 0) from storenode.store

-- note_online --
-- Note when a node was last online; a time ahead of the clock is corrected.
update storenode.store set last_online_ns = case
    when last_online_ns between %(online)b::bigint and %(now)b::bigint then last_online_ns
    else %(online)b::bigint end

-- record_online --
-- Insert or extend an interval in which a node was online.
insert into storenode.online (start_ns, end_ns, resumed)
values (%(start)b::bigint, %(end)b::bigint, %(resumed)b::boolean)
on conflict (start_ns, resumed) do update set end_ns = greatest(online.end_ns, excluded.end_ns)
returning xmax = 0

-- prune_online --
-- Delete all but the newest intervals.
delete from storenode.online where start_ns < (
    select start_ns from storenode.online order by start_ns desc offset %(rows)b::bigint limit 1
)

-- read_online_between --
-- Intervals that touch a range of time, and the first of all.
(select start_ns, end_ns, resumed from storenode.online
 where end_ns >= %(start)b::bigint and start_ns < %(end)b::bigint)
union (select start_ns, end_ns, resumed from storenode.online order by start_ns limit 1)

-- read_server --
-- The store of a server that takes writes, and when that was started.
select uuid_send(store_id), extract(epoch from pg_postmaster_start_time())::text
from storenode.store where not pg_is_in_recovery()

-- read_timeline --
-- The system and the timeline of a server.
select (select system_identifier from pg_control_system()),
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)

-- coverage_columns --
-- The columns of a statement about another store.
start_ns, end_ns, compared_ns, keyed, missing_here, missing_there, count, fingerprint

-- read_coverage_of --
-- Statements about a store that overlap a range of time.
select <stores.coverage_columns> from storenode.coverage
where store_id = %s and end_ns > %s::bigint and start_ns < %s::bigint

-- delete_coverage --
-- Delete statements about a store.
delete from storenode.coverage using unnest(%s::bigint[], %s::bigint[]) as gone(start_ns, end_ns)
where store_id = %s and coverage.start_ns = gone.start_ns and coverage.end_ns = gone.end_ns

-- prune_coverage --
-- Delete statements before the horizon, and all but the newest about a store.
delete from storenode.coverage
where end_ns <= (select horizon_ns from storenode.store)
   or store_id = %(store)s and start_ns < (
      select start_ns from storenode.coverage where store_id = %(store)s
      order by start_ns desc offset %(rows)s limit 1)

-- forget_stores --
-- Delete the statements about all but the stores compared last.
delete from storenode.coverage where store_id in (
    select store_id from storenode.coverage group by store_id
    order by max(compared_ns) desc offset %s)

-- read_coverage --
-- Statements that overlap a range of time, by store.
select store_id, <stores.coverage_columns> from storenode.coverage
where end_ns > %s::bigint and start_ns < %s::bigint
order by store_id, start_ns, end_ns desc limit %s

-- hashes --
-- Hashes that are given.
unnest(%(hash)b::bytea[])

-- age --
-- The age of an unread event, in nanoseconds.
greatest(extract(epoch from clock_timestamp() - u.began_at) * 1000000, 0)::bigint * 1000

-- track --
-- Insert unread events; those that are there wait for the larger number of stores.
insert into storenode.unread as held (hash, ts, content_digest, needed)
select hash, ts, content_digest, needed::int
from unnest(%(u_hash)b::bytea[], %(u_ts)b::bigint[], %(u_content_digest)b::bytea[],
            %(u_needed)b::bigint[]) as given(hash, ts, content_digest, needed){stored}
order by hash
on conflict (hash) do update
    set needed = greatest(held.needed, excluded.needed), began_at = excluded.began_at,
        expired_at = null
    where held.needed < excluded.needed or held.expired_at is not null

-- confirm --
-- Note confirmations, and return the messages that need no more.
with given as (
    select hash, array_agg(distinct store) as stores
    from unnest(%(hash)b::bytea[], %(store)b::text[]) as given(hash, store) group by hash
), held as materialized (
    select u.hash, u.needed,
           array(select unnest(u.stores) union select unnest(given.stores)) as stores
    from storenode.unread u join given on u.hash = given.hash order by u.hash for update of u
), read as (
    delete from storenode.unread u using held
    where u.hash = held.hash and cardinality(held.stores) >= held.needed
    returning u.hash
), noted as (
    update storenode.unread u set stores = held.stores from held
    where u.hash = held.hash
      and cardinality(held.stores) < held.needed
)
select hash from read

-- expire --
-- Stop waiting for confirmations of messages.
update storenode.unread u set expired_at = clock_timestamp()
from (select n.hash from storenode.unread n join <stores.hashes> as given(hash) on given.hash = n.hash
      where n.expired_at is null order by n.hash for update of n) k
where u.hash = k.hash

-- unread_columns --
-- The columns of an unread event.
u.hash, u.content_digest, u.needed, u.stores, <stores.age>, u.expired_at is not null

-- read_unread --
-- Unread events of messages.
select <stores.unread_columns> from <stores.hashes> as given(hash)
cross join lateral (select n.* from storenode.unread n where n.hash = given.hash offset 0) u

-- read_newest_unread --
-- The newest unread events that have not expired.
select <stores.unread_columns> from storenode.unread u where u.expired_at is null
order by u.began_at desc, u.hash limit %(limit)b::bigint

-- sweep_unread --
-- Delete events that expired long ago, and those that no node has let expire.
delete from storenode.unread
where expired_at < clock_timestamp() - make_interval(secs => %(kept_s)s::double precision)
   or began_at < clock_timestamp() - make_interval(secs => %(lapsed_s)s::double precision)

-- drop_unread --
-- Delete the events of a partition of messages.
delete from storenode.unread where ts >= %s::bigint and ts < %s::bigint

-- sum_unread --
-- Counts and ages of unread events, and how many messages name parents that are missing.
select count(*),
       (select count(*) from (select distinct channel_key, ts from storenode.missing_parents
                              limit %(most_waiting)s::bigint) w),
       coalesce(max(<stores.age>), 0)::bigint,
       coalesce(max(<stores.age>) filter (where cardinality(u.stores)
           < least(u.needed, %(usual)s::bigint)), 0)::bigint
from storenode.unread u where u.expired_at is null

-- insert_coverage --
-- Insert statements about a store.
insert into storenode.coverage (store_id, <stores.coverage_columns>)
select %s, * from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bool[], %s::bigint[],
                         %s::bigint[], %s::bigint[], %s::bytea[])
on conflict do nothing

-- read_store --
-- What a node reads of its store at its start.
select uuid_send(store_id), cursor_key, greatest(0, last_online_ns,
       (select max(end_ns) from storenode.online where not resumed))
from storenode.store
