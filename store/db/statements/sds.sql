-- Statements about sds, and missing_parents.

-- check_payloads --
-- Rows behind a position with the payloads of their messages, and whether these are lost.
with k as materialized (
    select key, ts, hash from storenode.sds {sample}
    where {bounds} and (key, ts, hash) > (%s::uuid, %s::bigint, %s::bytea)
    order by key, ts, hash limit %s::bigint
)
select k.key, k.ts, k.hash, m.payload, m.payload is null and <messages.may_be_held>
from k left join storenode.messages m on m.ts = k.ts and m.hash = k.hash
order by k.key, k.ts, k.hash

-- columns --
-- The columns.
key, channel_key, ts, hash, channel, message_id, sender, lamport, parent_keys, parent_ids,
                           parent_hints, proof

-- given --
-- Rows that are given. They have different numbers of parents, which no rectangular array carries:
-- these come as texts of arrays.
unnest(%(s_key)b::uuid[], %(s_channel_key)b::uuid[], %(s_ts)b::bigint[],
            %(s_hash)b::bytea[], %(s_channel)b::bytea[], %(s_message_id)b::bytea[],
            %(s_sender)b::bytea[], %(s_lamport)b::text[], %(s_parent_keys)b::text[],
            %(s_parent_ids)b::text[], %(s_parent_hints)b::text[],
            %(s_proof)b::boolean[])
    as s(key, channel_key, ts, hash, channel, message_id, sender, lamport,
         parent_keys, parent_ids, parent_hints, proof)

-- values --
-- The values of a given row.
s.key, s.channel_key, s.ts, s.hash, s.channel, s.message_id, s.sender,
       nullif(s.lamport, '')::bigint, s.parent_keys::uuid[], s.parent_ids::bytea[],
       s.parent_hints::bytea[], s.proof

-- check_rows --
-- Given rows that are not there as they are; and whether there is none.
select g.ts, g.hash, held.key is null
from (select <sds.values> from <sds.given>) as g(<sds.columns>)
left join lateral (
    select <sds.columns> from storenode.sds n
    where n.key = g.key and n.ts = g.ts and n.hash = g.hash offset 0
) held on true
where held.key is null or g <> held

-- insert_sds --
-- SDS rows.
insert into storenode.sds (<sds.columns>) select <sds.values> from <sds.given>{stored}
on conflict do nothing

-- more --
-- The key that stands for all further missing parents of a message.
'00000000-0000-0000-0000-000000000000'::uuid

-- parent_stored --
-- True if the parent `named.key` is stored; rows outlive what is pruned for a while.
exists (select from storenode.sds h where h.key = named.key and (
    h.ts >= (select horizon_ns from storenode.store)
    or exists (select from storenode.messages m where m.ts = h.ts and m.hash = h.hash)))

-- in_time --
-- Rows of a range of time that are not dropped.
s.ts >= greatest(%(low)b::bigint, (select horizon_ns from storenode.store))
  and s.ts <= %(last)b::bigint

-- claimed --
-- Rows of claims.
unnest(%(keys)b::uuid[], %(ts)b::bigint[]) as c(key, ts)
join storenode.sds s on s.key = c.key and s.ts = c.ts and <sds.in_time>

-- all_in_time --
-- All rows of a range of time.
(select * from storenode.sds s where <sds.in_time>) s

-- again --
-- Rows of messages whose missing parents are looked for again.
unnest(%(channels)b::uuid[], %(ts)b::bigint[]) as c(channel_key, ts)
join storenode.sds s on s.channel_key = c.channel_key and s.ts = c.ts
    and s.ts >= (select horizon_ns from storenode.store)

-- elsewhere --
-- Most parents came shortly before: a hash table finds these, without a search in every partition.
where not exists (select from unnest(%(keys)b::uuid[]) as c(key) where c.key = p.key)

-- add_missing --
-- Add the parents of messages that are not stored; days have 86,400 * 10^9 nanoseconds.
with lacking as materialized (
    select given.channel_key, given.ts, given.ts / 86400000000000 as day, parent.key as parent_key,
           row_number() over (partition by given.channel_key, given.ts) as place
    from (
        select s.channel_key, s.ts, array_agg(distinct p.key) as keys
        from {messages} cross join unnest(s.parent_keys) as p(key) {elsewhere}
        group by s.channel_key, s.ts
    ) as given cross join lateral (
        select named.key from unnest(given.keys) as named(key)
        where not <sds.parent_stored> limit {of_message} + 1
    ) as parent
), days as materialized (
    select channel_key, day, (
        select count(*) from storenode.missing_parents m
        where m.channel_key = lacking.channel_key
          and m.ts >= lacking.day * 86400000000000 and m.ts < (lacking.day + 1) * 86400000000000
    ) as used from lacking group by channel_key, day
)
insert into storenode.missing_parents (channel_key, ts, parent_key)
select channel_key, ts, case
    when place = 1 then parent_key
    when place <= {of_message} and used + rank <= {of_day} then parent_key
    else <sds.more> end
from (
    select lacking.*, row_number() over (partition by channel_key, day order by place, ts) as rank
    from lacking
) as ranked join days using (channel_key, day)
on conflict do nothing

-- delete_stored --
-- Delete parents that came, and return the messages that named them.
with came as (
    delete from storenode.missing_parents where parent_key = any(%b::uuid[])
    returning channel_key, ts
)
select uuid_send(channel_key), ts from came group by channel_key, ts

-- delete_lone_more --
-- Delete `more` where it alone is left, and return these messages.
with lone as (
    delete from storenode.missing_parents m
    using unnest(%(channels)b::uuid[], %(ts)b::bigint[]) as c(channel_key, ts)
    where m.channel_key = c.channel_key and m.ts = c.ts and m.parent_key = <sds.more>
      and not exists (select from storenode.missing_parents o
                      where o.channel_key = c.channel_key and o.ts = c.ts
                        and o.parent_key <> <sds.more>)
    returning m.channel_key, m.ts
)
select uuid_send(channel_key), ts from lone

-- delete_missing --
-- Delete the rows of a range of time.
delete from storenode.missing_parents where ts >= %s::bigint and ts <= %s::bigint

-- delete_dropped --
-- Delete the rows of messages before the horizon.
delete from storenode.missing_parents where ts < (select horizon_ns from storenode.store)

-- count_missing --
-- The number of missing parents by span of time, up to a limit each.
select (
    select count(distinct few.parent_key) from (
        select m.parent_key from storenode.missing_parents m
        where m.channel_key = %(channel)b::uuid and m.ts < step.last
          and m.ts >= greatest(step.low, (select horizon_ns from storenode.store))
        limit %(most)b::bigint
    ) as few
)
from unnest(%(low)b::bigint[], %(end)b::bigint[]) with ordinality as step(low, last, number)
order by step.number

-- check_pending --
-- The horizon, and keys that are not followed yet. One statement sees one snapshot. What is not followed yet says nothing about the table.
with store as (select horizon_ns, folded_position from storenode.store),
pending as (
    select encode(substr(c.claims, 24 * n + 1, 16), 'hex')::uuid as key
    from storenode.commits c cross join store
    cross join generate_series(0, octet_length(c.claims) / 24 - 1) as n
    where c.position > store.folded_position
)

-- named --
-- A parent that a message names, for people.
format('%s of channel %s at %s', named.key, named.channel_key, named.ts)

-- check_not_missing --
-- Missing parents that are stored, or that no message names.
<sds.check_pending>
select 'missing parent that is not missing', 'missing_parents', <sds.named>
from (select channel_key, ts, parent_key as key from storenode.missing_parents
      where parent_key <> <sds.more>) as named
cross join store
where named.ts >= store.horizon_ns
  and named.key not in (select key from pending)
  and (<sds.parent_stored> or not exists (
      select from storenode.sds s where s.channel_key = named.channel_key and s.ts = named.ts
      and named.key = any(s.parent_keys)))

-- check_not_counted --
-- Parents that are not stored and have no row. Where retention has dropped something, it may have been such a parent. Not every parent that a
-- message lacks has a row, but one of them has.
<sds.check_pending>
select 'parent that is missing and is not counted', 'missing_parents', <sds.named>
from (select s.key as child, s.channel_key, s.ts, p.key
      from storenode.sds s cross join unnest(s.parent_keys) as p(key)) as named
cross join store
where store.horizon_ns = 0
  and named.child not in (select key from pending)
  and not exists (select from storenode.missing_parents m
                  where m.channel_key = named.channel_key and m.ts = named.ts)
  and not <sds.parent_stored>

-- count_missing_rows --
-- The number of rows of missing parents.
select count(*) from storenode.missing_parents

-- hash_array --
-- The size of an array of hashes with one hint for each parent.
20 + 36 * cardinality(s.parent_hints)

-- hints --
-- Hints in binary format; those that are no hashes are left out where they are long.
case when octet_length(array_send(s.parent_hints)) <= <sds.hash_array>
     then array_send(s.parent_hints)
     else (select array_send(array_agg(
                      case when octet_length(h.hint) = 32 then h.hint end order by h.n))
           from unnest(s.parent_hints) with ordinality h(hint, n)) end

-- visible --
-- True if the message of a claim is stored and inside the filter; what is newer than the horizon is
-- stored.
(not %(filtered)s::boolean and s.ts >= (select horizon_ns from storenode.store) or exists (
    select from storenode.messages m where m.ts = s.ts and m.hash = s.hash{topics} offset 0))

-- claim --
-- The columns of a claim behind its key and timestamp.
s.hash, s.message_id,
       case when %(parents)s::boolean then array_send(s.parent_keys) else ''::bytea end,
       case when %(parents)s::boolean then <sds.hints> else ''::bytea end,
       s.proof and %(prefers)s::boolean

-- read_claims --
-- The first claimants of keys, and of further ones that are reached from them by parents, key by
-- key; some claims of each are followed. One without claimants has a row without a timestamp.
with recursive reached(key) as (
    select unnest(%(keys)b::uuid[])
    union
    select unnest(s.parent_keys) from reached cross join lateral (
        select p.parent_keys from storenode.sds p where p.key = reached.key limit {crowd}
    ) s
)
select uuid_send(k.key), s.ts, <sds.claim>
from (select key from reached limit %(most)b::bigint) as k left join lateral (
    select * from (
        select s.* from storenode.sds s where s.key = k.key and s.channel = %(channel)b::bytea
        order by s.ts, s.hash limit {seen}
    ) s where <sds.visible> order by s.ts, s.hash limit {crowd}
) s on true limit %(limit)b::bigint

-- read_proven --
-- The first proven claimants of keys that have many, by their index.
select uuid_send(k.key), s.ts, <sds.claim>
from unnest(%(keys)b::uuid[]) as k(key) cross join lateral (
    select * from (
        select s.* from storenode.sds s
        where s.key = k.key and s.proof and s.channel = %(channel)b::bytea limit {seen}
    ) s where <sds.visible> order by s.ts, s.hash limit {crowd}
) s

-- read_hinted --
-- Messages that hints name: with the claim of the hint's key, else with the payload.
select uuid_send(k.key), m.ts, m.hash, s.message_id, array_send(s.parent_keys), <sds.hints>,
       s.proof and %(prefers)s::boolean, case when s.key is null then m.payload end
from unnest(%(keys)b::uuid[], %(hash)b::bytea[]) as k(key, hash)
cross join <messages.message_of_hash>
left join lateral (
    select n.* from storenode.sds n
    where n.key = k.key and n.ts = m.ts and n.hash = m.hash and n.channel = %(channel)b::bytea
    offset 0
) s on true where true{topics}

-- read_parents --
-- Parents of claims, by slot.
select k.hash, k.slot, s.parent_ids[k.slot], s.parent_hints[k.slot]
from unnest(%(keys)b::uuid[], %(ts)b::bigint[], %(hash)b::bytea[], %(slots)b::bigint[])
    as k(key, ts, hash, slot)
join storenode.sds s on s.key = k.key and s.ts = k.ts and s.hash = k.hash
where s.ts >= %(low)b::bigint and s.ts <= %(high)b::bigint
