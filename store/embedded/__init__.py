"""A Postgres server of the node's own, run as its child."""
