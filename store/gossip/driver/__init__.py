"""The driver of gossip, which runs the machine on asyncio; its surroundings are arguments."""
