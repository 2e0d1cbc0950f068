"""Relay in the simulator: networks of gossipsub routers with faults, some of whose peers lie."""
