"""The view over summaries: counts and XORs of slices of time, and IDs only where these differ."""
