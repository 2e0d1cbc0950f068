"""Reconciliation with peers, transfer, schedule, resume and look-up: cores and their drivers."""
