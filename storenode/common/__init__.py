"""Shared by all rooms: bounded dictionaries, pauses between attempts, base errors."""
