"""A cluster of real processes under faults: its demo, its soak and the attacks on it.

``node`` and ``network`` are the processes and the wires between them; ``participant`` and ``link``
the SDS participants; ``checker`` records a history and compares it with what stores and logs hold.
``demo`` ships with the node as ``storenode demo``. ``soak``, ``attacks`` and ``fuzz`` are run from
the repository, and need the helpers of the tests.
"""
