"""The attacks, by what they have in common."""
