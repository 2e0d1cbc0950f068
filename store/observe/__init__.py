"""Logs, metrics, traces, and the status page."""
