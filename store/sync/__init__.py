"""Reconciliation with peers, transfer, schedule, resume and lookup: cores and their drivers."""
