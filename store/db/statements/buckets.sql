-- Statements about buckets, the summaries of messages, and archived, what an archive held.

-- joined_row --
-- A bucket as eight-byte numbers.
int8send(b.start_ns)||int8send(b.count)||int8send(b.x0)||int8send(b.x1)||int8send(b.x2)||int8send(b.x3)

-- read_level --
-- All buckets of a level, joined into one value.
select string_agg(<buckets.joined_row>, ''::bytea) from (
    select * from storenode.buckets b where b.level = %(level)b::smallint order by b.start_ns
) b

-- read_inside --
-- The buckets of a level in ranges of time, joined into one value.
select string_agg(<buckets.joined_row>, ''::bytea)
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select * from storenode.buckets b
    where b.level = %(level)b::smallint and b.start_ns >= k.low and b.start_ns <= k.high
    order by b.start_ns offset 0
) b

-- count_hours --
-- The number of hours with messages, up to a limit.
select count(*) from (
    select from storenode.buckets where level = 1 limit %b::bigint
) as few

-- read_known_days --
-- Known sums of whole days in ranges of time.
select day.start_ns, day.count, day.lattice
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select start_ns, count, lattice from storenode.buckets
    where level = 2 and start_ns >= k.low and start_ns <= k.high - 86400000000000
      and lattice_count = count
    offset 0
) day

-- read_hours --
-- Hours in ranges of time that are in no day with a known sum, with their known sums.
select hour.start_ns, hour.count, hour.lattice
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select start_ns, count, case when lattice_count = count then lattice end as lattice
    from storenode.buckets b
    where level = 1 and start_ns >= k.low and start_ns <= k.high - 3600000000000
      and not exists (
          select from storenode.buckets day
          where day.level = 2 and day.start_ns = b.start_ns - b.start_ns %% 86400000000000
            and day.lattice_count = day.count
            and day.start_ns >= k.low and day.start_ns <= k.high - 86400000000000)
    offset 0
) hour

-- read_known_sums --
-- Known sums of some hours and days.
select level, start_ns, count, lattice from storenode.buckets
where lattice_count = count
  and (level = 1 and start_ns = any(%s::bigint[]) or level = 2 and start_ns = any(%s::bigint[]))

-- read_unknown_hours --
-- Hours without a known sum, those that never had one first.
select start_ns, count from storenode.buckets
where level = 1 and start_ns >= %s::bigint and start_ns <= %s::bigint
  and lattice_count is distinct from count
order by lattice_count is null desc, start_ns desc

-- read_unknown_days --
-- Days without a known sum whose hours all have one.
select start_ns from storenode.buckets day
where level = 2 and start_ns >= %s::bigint and start_ns <= %s::bigint
  and lattice_count is distinct from count
  and not exists (
      select from storenode.buckets hour
      where hour.level = 1 and hour.start_ns >= day.start_ns
        and hour.start_ns < day.start_ns + 86400000000000
        and hour.lattice_count is distinct from hour.count)

-- read_hours_of_day --
-- Counts and sums of the hours of a day.
select count, lattice from storenode.buckets
where level = 1 and start_ns >= %s::bigint and start_ns < %s::bigint + 86400000000000

-- write_sums --
-- Set the sums of buckets.
update storenode.buckets held set lattice = given.lattice, lattice_count = given.count
from unnest(%s::smallint[], %s::bigint[], %s::bigint[], %s::bytea[])
    as given(level, start_ns, count, lattice)
where held.level = given.level and held.start_ns = given.start_ns

-- check_known --
-- Hours and days of a range with known sums.
select level, start_ns, count, lattice from storenode.buckets
where lattice_count = count and (level = 1 and start_ns >= %s and start_ns <= %s
                                 or level = 2 and start_ns >= %s and start_ns <= %s)
order by level, start_ns

-- check_count --
-- The number of minutes of a range.
select count(*) from storenode.buckets where level = 0 and start_ns between %s and %s

-- check_minutes --
-- Minutes whose buckets differ from their messages.
select start_ns, sum(held)::bigint, sum(said)::bigint from (
    select start_ns, count as held, 0 as said, <buckets.words> from ({minutes}) as messages
    union all
    select start_ns, 0, count, <buckets.words> from storenode.buckets
    where level = 0 and start_ns between {low} and {last}
    union all
    select start_ns, 0, count, <buckets.words> from <buckets.given> as unfolded(start_ns, count, <buckets.words>)
) as compared
group by start_ns having sum(held) <> sum(said) or <buckets.is_not_nothing> order by start_ns

-- check_levels --
-- Hours and days that differ from the finer buckets in them.
select level, start_ns, sum(finer)::bigint, sum(said)::bigint from (
    select 1 as level, start_ns / 3600000000000 * 3600000000000 as start_ns, count as finer, 0 as said,
           <buckets.words>
    from storenode.buckets where level = 0
    union all
    select 2, start_ns / 86400000000000 * 86400000000000, count, 0, <buckets.words>
    from storenode.buckets where level = 1
    union all
    select level, start_ns, 0, count, <buckets.words> from storenode.buckets where level in (1, 2)
) as compared
group by level, start_ns having sum(finer) <> sum(said) or <buckets.is_not_nothing> order by level, start_ns

-- insert_minutes --
-- The buckets of minutes that messages make, without what is not folded yet.
insert into storenode.buckets (level, start_ns, count, <buckets.words>)
select 0, start_ns, sum(count), <buckets.joined_words> from (
    {minutes}
    union all
    select start_ns, -count, <buckets.words> from <buckets.given> as unfolded(start_ns, count, <buckets.words>)
) as minutes
group by start_ns having sum(count) <> 0 or <buckets.is_not_nothing> order by start_ns

-- insert_level --
-- The buckets of a level, from those of the finer one.
insert into storenode.buckets (level, start_ns, count, <buckets.words>)
select %(level)s::smallint, start_ns / %(length)s::bigint * %(length)s::bigint, sum(count),
       <buckets.joined_words> from storenode.buckets
where level = %(level)s::smallint - 1 and start_ns >= %(low)s::bigint
  and start_ns <= %(last)s::bigint
group by 2 order by 2

-- count_messages --
-- The number of messages of a range of time.
select coalesce(sum(count), 0)::bigint from storenode.buckets
where level = 0 and start_ns >= %s::bigint and start_ns <= %s::bigint

-- count_hourly --
-- The number of messages of each hour from a first to a last one.
select coalesce(held.count, 0)
from generate_series(%b::bigint, %b::bigint, 3600000000000) as hour(start_ns)
left join storenode.buckets held on held.level = 1 and held.start_ns = hour.start_ns
order by hour.start_ns

-- words --
-- The columns of an XOR.
x0, x1, x2, x3

-- joined_words --
-- The XOR of several rows, as an aggregate per column.
bit_xor(x0), bit_xor(x1), bit_xor(x2), bit_xor(x3)

-- is_not_nothing --
-- A condition on groups of rows: the XOR of their XORs is not zero.
bit_xor(x0) <> 0 or bit_xor(x1) <> 0 or bit_xor(x2) <> 0 or bit_xor(x3) <> 0

-- given --
-- The parameters that `columns` makes: start_ns, count, x0, x1, x2, x3.
unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])

-- words_of_bits --
-- The messages of a range of time by minutes. One XOR of 256 bits is quicker than four of 64, and
-- words, whose first byte is the lowest, are made of it once per minute.
cast(cast(substring(bits from 57 for 8) || substring(bits from 49 for 8) || substring(bits from 41 for 8) || substring(bits from 33 for 8)
    || substring(bits from 25 for 8) || substring(bits from 17 for 8) || substring(bits from 9 for 8) || substring(bits from 1 for 8) as bit(64)) as bigint) as x0,
cast(cast(substring(bits from 121 for 8) || substring(bits from 113 for 8) || substring(bits from 105 for 8) || substring(bits from 97 for 8)
    || substring(bits from 89 for 8) || substring(bits from 81 for 8) || substring(bits from 73 for 8) || substring(bits from 65 for 8) as bit(64)) as bigint) as x1,
cast(cast(substring(bits from 185 for 8) || substring(bits from 177 for 8) || substring(bits from 169 for 8) || substring(bits from 161 for 8)
    || substring(bits from 153 for 8) || substring(bits from 145 for 8) || substring(bits from 137 for 8) || substring(bits from 129 for 8) as bit(64)) as bigint) as x2,
cast(cast(substring(bits from 249 for 8) || substring(bits from 241 for 8) || substring(bits from 233 for 8) || substring(bits from 225 for 8)
    || substring(bits from 217 for 8) || substring(bits from 209 for 8) || substring(bits from 201 for 8) || substring(bits from 193 for 8) as bit(64)) as bigint) as x3

-- sum_minutes --
-- Buckets of minutes of the messages of a range of time.
select minute * 60000000000 as start_ns, count, <buckets.words_of_bits> from (
    select ts / 60000000000 as minute, count(*) as count,
           bit_xor(cast('x' || encode(hash, 'hex') as bit(256))) as bits
    from storenode.messages where ts >= {low} and ts <= {last} group by 1
) as summarized

-- messages --
-- The number of stored messages: what days count, and commits that are not folded yet.
(
    (select coalesce(sum(count), 0) from storenode.buckets where level = 2)
    + (select coalesce(sum(messages), 0) from storenode.commits
       where position > (select folded_position from storenode.store)))::bigint

-- add --
-- Add counts and XORs to buckets.
insert into storenode.buckets as held (level, start_ns, count, x0, x1, x2, x3)
select level::smallint, start_ns, count, x0, x1, x2, x3
from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
            %s::bigint[]) as given(level, start_ns, count, x0, x1, x2, x3)
order by level, start_ns
on conflict (level, start_ns) do update set
    count = held.count + excluded.count,
    x0 = held.x0 # excluded.x0, x1 = held.x1 # excluded.x1,
    x2 = held.x2 # excluded.x2, x3 = held.x3 # excluded.x3

-- delete --
-- Delete the buckets of every level in a range of time.
delete from storenode.buckets
where level in (0, 1, 2) and start_ns >= %s::bigint and start_ns <= %s::bigint

-- unarchived_hours --
-- Hours that differ from what was noted as archived.
    select start_ns from storenode.buckets held
    where level = 1 and start_ns > %(low)s::bigint and start_ns < %(high)s::bigint
      and (count, x0, x1, x2, x3) <> (0, 0, 0, 0, 0)
      and not exists (
          select from storenode.archived noted
          where noted.start_ns = held.start_ns
            and (noted.count, noted.x0, noted.x1, noted.x2, noted.x3)
              = (held.count, held.x0, held.x1, held.x2, held.x3))

-- count_unarchived --
-- An hour that a commit is about which is not folded yet is not what its bucket says.
select count(*), min(start_ns) from (
    <buckets.unarchived_hours>
    union all
    select greatest(min_ts, %(low)s::bigint) from storenode.commits
    where position > (select folded_position from storenode.store)
      and max_ts > %(low)s::bigint and min_ts < %(high)s::bigint
) as unarchived

-- read_archive_state --
-- How far archives have come.
select count(*), coalesce(min(start_ns), 0)::bigint,
       (select coalesce(max(start_ns), 0)::bigint from storenode.archived)
from (<buckets.unarchived_hours>) as unarchived
