"""What was missed while the store was off: the core and its driver."""
