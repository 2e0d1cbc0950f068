"""Gossip in the simulator: a service of simulated nodes, some of whose peers lie."""
