"""The audit of a history: which parents it lacks, and which messages depend on them."""
