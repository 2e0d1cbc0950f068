-- Statements about commits.

-- read_newest --
-- The newest commit.
select position, token from storenode.commits order by position desc limit 1

-- read_first_from --
-- The first commit from a position on.
select position, token from storenode.commits where position >= %b::bigint
order by position limit 1

-- read_commit --
-- The position of the oldest commit, and the token of the commit at a position.
select (select position from storenode.commits order by position limit 1),
       (select token from storenode.commits where position = %b::bigint)

-- read_following --
-- Deltas and claims of the commits after a position, up to a number of commits and of bytes, at
-- least one.
select position, summary, claims from (
    select position, summary, claims, sum(size) over (order by position) - size as before
    from (
        select position, summary, claims, octet_length(summary) + octet_length(claims) as size
        from storenode.commits where position > %s order by position limit %s
    ) as following
) as measured
where before < %s order by position

-- read_between --
-- Commits in their order, those that may have a topic of a selection.
select position, token, batch, messages, min_ts, max_ts, topics from storenode.commits
where position >= %(first)b::bigint and position <= %(last)b::bigint{topics}
order by position limit %(limit)b::bigint

-- touching --
-- Commits that may have a topic of a selection.
 and (topics is null or topics && %(topics)b::uuid[])

-- read_deltas --
-- Deltas of commits after a position.
select position, summary from storenode.commits where position > %b::bigint
order by position limit %b::bigint

-- given --
-- The parameters of commits, apart from their batches; `topics` are array literals, or empty.
%(token)b::bigint[], %(given)b::bigint[], %(min_ts)b::bigint[], %(max_ts)b::bigint[],
       %(topics)b::text[], %(source)b::text[], %(summary)b::bytea[], %(claims)b::bytea[]

-- columns --
-- The columns of a commit that is inserted.
position, batch, token, messages, min_ts, max_ts, topics, source, summary, claims

-- insert_commits --
-- Take the place in the commit order, and insert commits at the next positions.
with placed as materialized (
    select pg_advisory_xact_lock(%(commit_order)b::bigint),
           pg_notify('storenode_feed', %(notice)s),
           set_config('idle_in_transaction_session_timeout', %(idle)s, true)
)
insert into storenode.commits (<commits.columns>)
select nextval('storenode.position_seq'), c.batch, c.token, c.given, c.min_ts, c.max_ts,
       nullif(c.topics, '')::uuid[], c.source, c.summary, c.claims
from placed, unnest(%(batch)b::bigint[], <commits.given>)
     as c(batch, token, given, min_ts, max_ts, topics, source, summary, claims)
returning position, batch, token

-- find_batch --
-- What an attempt has committed whose answer was lost.
select position, batch from storenode.commits where token = %b::bigint
  and position > (select last_value - 1000000 from storenode.position_seq) limit 1

-- insert_at_once --
, placed as materialized (
    select pg_advisory_xact_lock(%(commit_order)b::bigint),
           pg_notify('storenode_feed', %(notice)s)
    from (select count(*) as added from stored) as total{written}
    where added > 0
)
insert into storenode.commits (<commits.columns>)
select nextval('storenode.position_seq'), c.batch, c.token, c.given, c.min_ts, c.max_ts,
       nullif(c.topics, '')::uuid[], c.source,
       case (select count(*) from stored where stored.batch = c.batch)
           when c.given then c.summary end, c.claims
from placed, numbered, unnest(numbered.batches, <commits.given>)
     as c(batch, token, given, min_ts, max_ts, topics, source, summary, claims)
returning position, batch, token

-- has_unfolded --
-- True if a commit is not folded.
select exists (select from storenode.commits
               where position > (select folded_position from storenode.store))

-- read_newest_time --
-- The time of the newest commit, or of the first upgrade, in nanoseconds.
select (extract(epoch from greatest(created_at, (
    select committed_at from storenode.commits order by position desc limit 1
))) * 1000000)::bigint * 1000 from storenode.store

-- check_sequences --
-- Sequences that are behind the largest values in use.
select 'sequence behind its table', name, format('it stands at %s, the table at %s', last, largest)
from (
    select 'position_seq', (select max(position) from storenode.commits), last_value
    from storenode.position_seq
    union all
    select 'batch_seq', (select max(batch) from storenode.messages), last_value
    from storenode.batch_seq
) as sequences(name, largest, last)
where largest > last

-- check_batches --
-- A commit counts what its transaction stored, so no batch may hold more; fewer are left when some
-- were pruned. A batch whose messages all lie behind the horizon may have lost its commit.
select case when committed.batch is null then 'batch without a commit'
            else 'commit of fewer messages than are held' end,
       'commits',
       case when committed.batch is null then format('batch %s', counted.batch)
            else format('batch %s: %s held, %s committed',
                        counted.batch, counted.messages, committed.messages) end
from (select batch, count(*) as messages, max(ts) as newest from storenode.messages
      group by batch) counted
left join storenode.commits committed on committed.batch = counted.batch
where committed.messages < counted.messages
   or committed.batch is null
      and counted.newest >= (select horizon_ns from storenode.store)

-- count --
-- The number of commits.
select count(*) from storenode.commits
