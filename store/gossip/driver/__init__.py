"""The driver of gossip: runs the machine on asyncio, over whatever carries frames and stores.

Clocks, randomness, logging, the transport and the database are arguments (`ports`), so that the
simulator runs this very code on virtual time.
"""
