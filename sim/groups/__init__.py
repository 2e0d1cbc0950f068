"""Simulated groups: many participants of one SDS channel, with a store node or without.

Each participant is the shipped one, `storenode.sds.aio`, on the simulator's event loop, network
and clock, with a durable state whose transactions fail. With a store node it publishes to it,
follows it or receives from the others, and fetches what it misses; without, it has the others only.
Store nodes are the shipped ones of `sim.node`: they admit, store and reconcile with each other.
There are faults first; then they stop, and all logs must become equal, but for what a participant
was notified of as lost. At last all leave, and nothing may be left of them.

    python -m sim --groups 50 --seed 7 --trace
"""
