"""Counts and fingerprints of minutes, hours and days."""
