"""The tables, their migrations and their partitions."""
