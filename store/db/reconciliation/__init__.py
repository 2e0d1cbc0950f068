"""Views for reconciliation: the index in memory over the summaries in Postgres."""
