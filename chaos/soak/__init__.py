"""The soak: three nodes under load, one fault after the other, and a check of everything.

``scenario`` starts the machines and their clients, ``nemesis`` has the faults and their schedule,
``run`` the course of a run. See docs/soak.md.
"""
