"""A cluster of real processes under faults: its demo, its soak and the attacks on it.

``world`` has the nodes, the wires between them, the clients and the SDS participants of a run;
``checker`` records its history and compares it with what stores and logs hold. ``demo`` and
``soak`` are scenarios of it. ``demo`` ships with the node as ``storenode demo``. ``soak``
and ``attacks`` are run from the repository. Tests use its drivers, clients and rules.
"""
