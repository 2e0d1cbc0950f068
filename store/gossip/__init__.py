"""Live gossip between stores: events, inventories, read confirmations, leaves. Pure."""
