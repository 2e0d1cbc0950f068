"""Logs, metrics, and the status page."""
