"""Storing messages: batches, statements, and what goes with them in one transaction."""
