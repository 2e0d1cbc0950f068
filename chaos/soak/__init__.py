"""The soak: three nodes under load, one fault after the other, and a check of everything.

``world`` has the machines and their clients, ``nemesis`` the faults and their schedule, and
``__main__`` the course of a run. See docs/soak.md.
"""
