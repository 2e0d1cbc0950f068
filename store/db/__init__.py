"""The Postgres edge.

`connection` has the settings of a session, `pool` the pools, `locks` the locks, `arrays` the
columns as parameters. `schema` has tables, migrations and partitions; `writing` the transaction
that stores a batch; `reading` pages and look-ups; `sds` look-ups by SDS message ID; `commits` the
commit order and the feed; `summaries` counts and XORs of slices of time; `reconciliation` views for
sessions; `maintenance` partitions ahead and retention; `check` the comparison of a database with
itself.
"""
