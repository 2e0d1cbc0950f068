-- Statements about Postgres's catalog: partitions, sizes, standbys, sessions.

-- wait_for_standby --
-- Write a record that a synchronous standby must have.
select pg_logical_emit_message(true, 'storenode', ''::text) where current_setting('synchronous_standby_names') <> ''

-- read_clock --
-- The clock of the server, in nanoseconds.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000

-- read_catalog --
-- All partitions, with sizes and estimates of rows where they are asked for: a size waits for a
-- partition that is being dropped.
select p.relname::text, c.relname::text, c.oid::bigint, pg_get_expr(c.relpartbound, c.oid),
       i.inhdetachpending, case when %s then pg_total_relation_size(c.oid) else 0 end,
       case when %s then c.reltuples::bigint else -1 end
from pg_inherits i
join pg_class p on p.oid = i.inhparent
join pg_class c on c.oid = i.inhrelid
where p.relnamespace = 'storenode'::regnamespace and p.relkind = 'p' and c.relkind = 'r'
order by 1, 2

-- check_tables --
-- Tables in the schema that are not of this program.
select 'stray table', relname::text, relname::text from pg_class c
where relnamespace = 'storenode'::regnamespace and relkind in ('r', 'p', 'f', 'm')
  and not relispartition
  and relname <> all(array['store', 'alembic_version', 'messages', 'hashes', 'sds', 'topics',
                           'commits', 'buckets', 'archived', 'unread', 'coverage', 'online',
                           'missing_parents'])
order by 1

-- check_partitions --
-- Partitions that hold no range of their own, or that are being detached.
select case when i.inhdetachpending then 'partition being detached' else 'default partition' end,
       p.relname::text, c.relname::text
from pg_inherits i
join pg_class p on p.oid = i.inhparent
join pg_class c on c.oid = i.inhrelid
where p.relnamespace = 'storenode'::regnamespace and p.relkind = 'p' and c.relkind = 'r'
  and (i.inhdetachpending or pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT')
order by 2, 3

-- check_indexes --
-- Not what is being rebuilt, or was when a node stopped: the one in charge drops it.
select 'invalid index', t.relname::text, x.relname::text
from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
where t.relnamespace = 'storenode'::regnamespace and not (i.indisvalid and i.indisready)
  and not (x.relname ~ '_cc(new|old)[0-9]*$' and not x.relispartition)
order by 1, 2

-- count_nodes --
-- The number of sessions that hold the lock of nodes.
select count(*) from pg_locks where locktype = 'advisory' and granted
    and database = (select oid from pg_database where datname = current_database())
    and classid::bigint = %s and objid::bigint = %s

-- read_tables --
-- Sizes and row counts of the tables.
select coalesce(p.relname, c.relname)::text,
       coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint,
       coalesce(sum(s.n_live_tup), 0)::bigint, coalesce(sum(s.n_dead_tup), 0)::bigint
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid
left join pg_class p on p.oid = i.inhparent
left join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'r'
group by 1 order by 1

-- read_files --
-- Sizes of the files of the tables, by kind.
with leaf as (
    select c.oid, c.reltoastrelid, c.reltuples, root.relname::text as name
    from pg_class c join pg_class root on root.oid = coalesce(pg_partition_root(c.oid), c.oid)
    where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'r'
), part as (
    select name, '' as index, pg_relation_size(oid) as bytes from leaf
    union all
    select name, 'out of line', pg_total_relation_size(reltoastrelid) from leaf
    where reltoastrelid <> 0
    union all
    select name, 'maps', pg_relation_size(oid, 'fsm') + pg_relation_size(oid, 'vm') from leaf
    union all
    select name, root.relname::text, pg_total_relation_size(i.indexrelid)
    from leaf join pg_index i on i.indrelid = leaf.oid
    join pg_class root on root.oid = coalesce(pg_partition_root(i.indexrelid), i.indexrelid)
)
select name, index, sum(bytes)::bigint from part group by name, index having sum(bytes) > 0
order by sum(sum(bytes)) over (partition by name) desc, name, index <> '', sum(bytes) desc

-- read_server --
-- True for a standby, and the size of the database.
select pg_is_in_recovery(), pg_database_size(current_database())::bigint

-- read_standbys --
-- Who may not read the statistics of others (role pg_read_all_stats) sees how many standbys there
-- are, and neither their names nor how far they have come.
select coalesce(application_name, '')::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint
from pg_stat_replication
where not pg_is_in_recovery() and state is distinct from 'backup'

-- read_slots --
-- Replication slots in use and unused.
select count(*) filter (where active), count(*) filter (where not active)
from pg_replication_slots
where slot_type = 'physical' and not temporary and not pg_is_in_recovery()

-- find_bloated --
-- The index that wastes the most, of some partitions. Entries have these sizes with their line
-- pointers, aligned ("Database Page Layout"). What Postgres builds with a tenth of each page free takes
-- 1.15 times as much; smaller indexes are not worth it. Postgres 14.0 to 14.3 may lose entries
-- while an index is built concurrently (release notes of 14.4).
select x.relname::text
from pg_index i
join pg_class x on x.oid = i.indexrelid
join pg_class root on root.oid = pg_partition_root(x.oid)
join pg_class t on t.oid = i.indrelid
join (values ('messages_topic_idx', 44), ('messages_pkey', 60), ('hashes_key_idx', 20),
             ('sds_channel_idx', 44), ('sds_pkey', 76)) as entry(root, bytes)
  on entry.root = root.relname
cross join lateral (select t.reltuples * entry.bytes as needed) as n
where x.relname <> all(%s::text[]) and t.oid = any(%s::oid[]) and t.reltuples > 0
  and pg_relation_size(x.oid) >= greatest(1048576, 1.16 * needed)
  and current_setting('server_version_num')::int not between 140000 and 140003
order by pg_relation_size(x.oid) - needed desc limit 1

-- read_leftovers --
-- What a rebuild that was cut short has left: no partition of an index, and not valid.
select x.relname::text from pg_index i join pg_class x on x.oid = i.indexrelid
where x.relnamespace = 'storenode'::regnamespace and not i.indisvalid
  and x.relname ~ '_cc(new|old)[0-9]*$' and not x.relispartition

-- describe --
-- Everything in the schema but partitions: the relation, its kind, and a line of text.
with relation as (
    select oid, relname::text as name, relkind from pg_class
    where relnamespace = 'storenode'::regnamespace and not relispartition
      and relkind in ('r', 'p', 'v', 'S') and relname <> 'alembic_version'
)
select r.name, r.relkind::text, format('column %s.%s %s', r.name, a.attname,
           format_type(a.atttypid, a.atttypmod))
       || coalesce(' collate ' || l.collname, '')
       || case when a.attnotnull then ' not null' else '' end
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
       || case when a.attstorage <> t.typstorage then ' storage ' || a.attstorage::text else '' end
from relation r join pg_attribute a on a.attrelid = r.oid
join pg_type t on t.oid = a.atttypid
left join pg_collation l on l.oid = a.attcollation and l.collname <> 'default'
left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
where a.attnum > 0 and not a.attisdropped and r.relkind <> 'S'
union all
select r.name, r.relkind::text, format('index %s', pg_get_indexdef(i.indexrelid))
from relation r join pg_index i on i.indrelid = r.oid
union all
select r.name, r.relkind::text,
       format('check %s.%s %s', r.name, c.conname, pg_get_constraintdef(c.oid))
from relation r join pg_constraint c on c.conrelid = r.oid and c.contype = 'c'
union all
select r.name, r.relkind::text, format('partitions of %s by %s', r.name, pg_get_partkeydef(r.oid))
from relation r where r.relkind = 'p'
union all
select r.name, r.relkind::text, case r.relkind when 'v' then 'view ' else 'sequence ' end || r.name
from relation r where r.relkind in ('v', 'S')

-- find_stall --
-- The sessions of this role that wait, each with the session at the end of its chain of locks; the
-- longest wait counts. Advisory locks other than the commit order do not hold up publishing.
with recursive blocked as (
    select a.pid as waiting, a.pid as pid, a.query_start, 0 as depth
    from pg_stat_activity a
    where a.datname = current_database() and a.usename = current_user
      and a.pid <> pg_backend_pid() and a.state = 'active'
      and (a.wait_event = 'SyncRep' or a.wait_event_type = 'IO' or a.wait_event like 'WAL%%'
           or exists (select from pg_locks l where l.pid = a.pid and not l.granted
                      and (l.locktype <> 'advisory' or
                           (l.classid::bigint << 32 | l.objid::bigint) = %s::bigint)))
    union all
    select b.waiting, blocker, b.query_start, b.depth + 1
    from blocked b cross join unnest(pg_blocking_pids(b.pid)) as blocker
    where b.depth < 8 and blocker <> 0
), ends as (
    select distinct on (waiting) pid, query_start, depth from blocked
    order by waiting, depth desc
)
select e.pid, e.depth > 0, coalesce(a.wait_event, ''), coalesce(a.application_name, ''),
       coalesce(a.usename::text, ''), coalesce(a.state, ''),
       current_setting('synchronous_standby_names'),
       (select count(*) from pg_stat_replication)
from ends e left join pg_stat_activity a on a.pid = e.pid
order by e.query_start nulls last limit 1

-- lock --
-- Take an advisory lock until the end of the transaction.
select pg_advisory_xact_lock(%s)

-- lock_session --
-- Take an advisory lock until it is released.
select pg_advisory_lock(%s)

-- try_lock --
-- Take an advisory lock if no other session has it.
select pg_try_advisory_lock(%s)

-- unlock --
-- Release an advisory lock of the session.
select pg_advisory_unlock(%s)

-- set_lock_timeout --
-- Let locks of this transaction that take longer fail.
select set_config('lock_timeout', %s, true)

-- set_unhurried --
-- Let locks of this transaction that take longer fail, and its commit not wait for the disk.
select set_config('synchronous_commit', 'off', true), set_config('lock_timeout', %s, true)

-- set_session_lock_timeout --
-- Let locks of this session that take longer fail.
select set_config('lock_timeout', %s, false)
