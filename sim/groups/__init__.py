"""Simulated groups: many participants of one SDS channel, with a store node or without.

Each participant is the real channel of `sds`, on the network, the clock and the disk of the
simulator. With a store node it publishes to it, follows it, and fetches what it misses: by hint,
then by ID, then as a causal closure. Without, all that it has are the others. There are faults
first; then they stop, and all logs must become equal, but for what a participant was told is lost.

    python -m sim --groups 50 --seed 7 --trace
"""
