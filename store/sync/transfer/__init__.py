"""The transfer of what a reconciliation found: the core and its driver."""
