"""The whole under fire: three nodes, their databases and clients, and one fault after the other.

Run it as ``python -m bench soak``. ``world`` has the processes, ``faults`` what befalls them,
``plan`` the order of it by a seed, ``run`` the course of a run, ``summary`` what it prints.
``checker`` decides whether all was kept; it shares no code with the nodes. See docs/soak.md.
"""
