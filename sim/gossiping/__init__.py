"""Gossip in the simulator: the machines of many nodes, with liars among their peers.

python -m sim --gossip alone --seed 7 --trace
"""
