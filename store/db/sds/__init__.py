"""Look-ups by SDS message ID and causal walks."""
