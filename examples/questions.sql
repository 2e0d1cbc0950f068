-- Ten questions about an archive, for DuckDB with its extension delta: duckdb < examples/questions.sql

install delta; load delta; set timezone = 'UTC';
create view messages as from delta_scan('ARCHIVE/messages');

-- who talks when: messages by sender and hour of the day
select sender, hour(make_timestamp_ns(ts)) as hour, count(*) as messages
from messages where sender is not null group by all order by all;

-- which hours are the busiest
select ts // 3600000000000 * 3600 as start_s, count(*) as messages
from messages group by all order by messages desc, start_s limit 10;

-- what a topic takes: messages and bytes of payload
select content_topic, count(*) as messages, sum(octet_length(payload))::bigint as bytes
from messages group by all order by bytes desc, content_topic;

-- how each channel grows by day
select channel, day, count(*) as messages
from messages where channel is not null group by all order by all;

-- how large messages are
select quantile_disc(octet_length(payload), 0.5) as median,
       quantile_disc(octet_length(payload), 0.99) as p99, max(octet_length(payload)) as most
from messages;

-- late arrivals: written before a message that they follow, by Lamport timestamp
select channel, message_id, lamport from (
    select channel, message_id, lamport, max(lamport) over (
        partition by channel order by ts, hash
        rows between unbounded preceding and 1 preceding
    ) as before from messages where channel is not null and lamport >= 0)
where lamport < before order by all;

-- duplicates: IDs that several messages claim
select channel, message_id, count(*) as messages, count(distinct payload) as payloads
from messages where channel is not null
group by all having count(*) > 1 order by all;

-- gaps: hours without any message
with hours as (select distinct ts // 3600000000000 as hour from messages),
following as (select hour, lead(hour) over (order by hour) as next from hours)
select hour + 1 as first_hour, next - hour - 1 as hours
from following where next > hour + 1 order by all;

-- missing parents: IDs that messages name and nobody claims in the channel
with named as (
    select channel, message_id, unnest(parents).id as parent
    from messages where channel is not null)
select channel, parent, count(distinct message_id) as named_by
from named anti join messages as held
    on held.channel = named.channel and held.message_id = named.parent
group by all order by all;

-- what is answered most: messages by how many others name them
with named as (
    select channel, message_id, unnest(parents).id as parent
    from messages where channel is not null)
select channel, parent, count(distinct message_id) as named_by
from named group by all order by named_by desc, channel, parent limit 10;
