"""Reading messages: pages in order, look-ups by hash, and messages for a transfer."""
