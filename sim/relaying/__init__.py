"""Relay in the simulator: networks of gossipsub routers with faults, some of whose peers lie.

python -m sim --relay --seed 7 --trace
"""
