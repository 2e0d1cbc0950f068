"""How fast gossip spreads an event over many simulated nodes, and how much that takes.

Time is virtual: links of 10 to 40 ms at most, databases of 2 ms, links that break at 5 % of all
frames and are made again with backoff. ``python -m bench gossip_sim``; ``--messages``
is the number of events.
"""

from __future__ import annotations

import argparse
import random
import time

from sim.gossiping.spread import Shape, Spread, spread

SIZES = ((5, 4), (50, 6), (500, 6))
BREAKS = (0.0, 0.05)
SEED = 5


def main() -> None:
    """Print one line for each size.

    Raises:
        Violation: an event was left out in the end.
    """
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench gossip_sim")
    parser.add_argument("--messages", type=int, default=20, help="events of each run [20]")
    given = parser.parse_args()
    print("nodes  links  breaks   half   99.9 %      all  late  frames    ids  copies/link   took")
    for nodes, degree in SIZES:
        for breaks in BREAKS:
            began = time.monotonic()
            shape = Shape(nodes, degree, given.messages, breaks)
            result = spread(shape, random.Random(SEED))
            print(line(shape, result, time.monotonic() - began))
    print("half, 99.9 %, all: milliseconds until so many (event, node) pairs were there;")
    print("late: pairs that came only when nothing broke any more; the rest is for each event.")


def line(shape: Shape, result: Spread, seconds: float) -> str:
    """One row of the table."""
    half, most, everything = (1e3 * each for each in (result.half_s, result.most_s, result.all_s))
    return (
        f"{shape.nodes:>5}  {result.links:>5}  {shape.breaks:>5.0%}  {half:>6.0f}  {most:>7.0f}  "
        f"{everything:>7.0f}  {result.late:>4}  {result.frames:>6.0f}  {result.ids:>5.0f}  "
        f"{result.copies:>11.2f}  {seconds:>4.0f} s"
    )


if __name__ == "__main__":
    main()
