"""Participants of one SDS channel in a simulated world, with store nodes or without.

Each participant is the shipped one, `storenode.sds.aio`, on the simulator's event loop, network
and clock, with a durable state whose transactions fail. With store nodes, which are those of
`sim.node`, it publishes to one, follows it or receives from the others, and fetches what it misses;
without, it has the others only. Once the faults have ended, all logs must become equal, but for
what a participant was notified of as lost. At last all leave, and nothing may be left of them.
"""
