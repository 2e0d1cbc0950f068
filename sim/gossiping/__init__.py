"""Gossip in the simulator: a service of simulated nodes, some of whose peers lie.

python -m sim --gossip alone --seed 7 --trace
"""
