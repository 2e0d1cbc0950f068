"""How fast gossip spreads an event over many simulated nodes, and how much that takes.

Time is virtual: links of 10 to 40 ms at most, databases of 2 ms, links that break at 5 % of all
frames and are made again with backoff. ``half_ms``, ``most_ms`` and ``all_ms`` are milliseconds
until half, 99.9 % and all (event, node) pairs were there, ``late`` the pairs that came only when
nothing broke any more; frames, IDs and copies over each link are for each event. ``--messages`` is
the number of events.
"""

from __future__ import annotations

import random
import time

from bench.support import options, report
from sim.gossiping.spread import Shape, spread

SIZES = ((5, 4), (50, 6), (500, 6))
BREAKS = (0.0, 0.05)
SEED = 5


def main() -> None:
    """Run all sizes, with and without breaks.

    Raises:
        Violation: an event was left out in the end.
    """
    events = options(__doc__, messages=20).messages
    for nodes, degree in SIZES:
        for breaks in BREAKS:
            began = time.monotonic()
            found = spread(Shape(nodes, degree, events, breaks), random.Random(SEED))
            report(
                benchmark="gossip_sim",
                nodes=nodes,
                links=found.links,
                breaks=breaks,
                half_ms=1e3 * found.half_s,
                most_ms=1e3 * found.most_s,
                all_ms=1e3 * found.all_s,
                late=found.late,
                frames=found.frames,
                ids=found.ids,
                copies_per_link=found.copies,
                took_s=time.monotonic() - began,
            )


if __name__ == "__main__":
    main()
