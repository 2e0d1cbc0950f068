"""The Postgres edge.

`connection` has the settings of a session, `pool` the pools, `primary` the guard against servers
that were replaced, `locks` the locks, `arrays` the columns as parameters. `migrate` has the schema,
`partitions` its partitions; `insert` and `writer` the transaction that stores a batch; `messages`
pages and lookups; `sds` lookups by SDS message ID; `feed` the commit order; `gossip` what gossip
reads and writes; `buckets` counts, XORs and sums of slices of time; `reconciliation` views for
sessions; `coverage` the record of completeness; `maintainer`, `retention` and `condition` what one
node does for all; `check` the comparison of a database with itself.
"""
