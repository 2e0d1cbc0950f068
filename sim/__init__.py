"""A deterministic simulator: many nodes in one process, on a network, disks and clocks that fail.

Each node runs the cores and drivers that ship: reconciliation, transfer, schedule, resume,
lookups, admission, and the index. What they work on is simulated, and one seeded generator decides
all that may go one way or another, so that a run can be repeated exactly. First there are faults;
then they stop, and all nodes must come to hold the same set.

    python -m sim --seed 7 --trace
"""
