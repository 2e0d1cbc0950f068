"""Commits in their order: pages of them, the feed, and their IDs."""
