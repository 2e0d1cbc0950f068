"""The IDs of a store for reconciliation: the newest in memory, over summaries of the rest."""
