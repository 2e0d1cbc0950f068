"""Modules of the schema, one for each revision, oldest first."""
