"""Checks of a database against itself and its schema."""
