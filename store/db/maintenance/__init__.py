"""Partitions ahead, retention, statistics, and what an operator must know."""
