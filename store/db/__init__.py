"""The Postgres edge: schema, writes, reads and the commit feed."""
