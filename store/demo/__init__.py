"""The whole system at work on one machine: nodes, participants, faults, and a verdict."""
