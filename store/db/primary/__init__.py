"""Which server takes the writes of a store, and which one must not."""
