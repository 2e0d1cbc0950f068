"""The soak: three nodes under load, one fault after the other, and a check of everything.

``world`` starts the machines and their clients, ``nemesis`` has the faults and their schedule,
``run`` the course of a run, ``summary`` its output. See docs/soak.md.
"""
