"""Participants of one SDS channel in a simulated world, with store nodes or without."""
