"""`fingerprint`: how many messages a place holds, and the XOR of their hashes, slice by slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from store.pipeline.database import FOREVER, connected, read_state
from store.pipeline.fingerprints import LEVELS_NS, NOTHING, Fingerprint, Fingerprints, coarser
from store.pipeline.lake import Lake
from store.pipeline.limits import HOUR_NS
from store.pipeline.reports import time_text
from store.pipeline.sides import Side


@dataclass(frozen=True)
class Fingerprinted:
    """The fingerprints of a place by slice, and of all of them together."""

    name: str
    level: str
    slices: Fingerprints

    @property
    def sound(self) -> bool:
        """Always: there is nothing to be found wrong."""
        return True

    @property
    def total(self) -> Fingerprint:
        """That of everything."""
        total = NOTHING
        for each in self.slices.values():
            total = total.joined(each)
        return total

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "name": self.name,
            "level": self.level,
            "messages": self.total.messages,
            "xor": self.total.hex,
            "slices": [
                {"start": time_text(start), "start_ns": start, "messages": each.messages}
                | {"xor": each.hex}
                for start, each in sorted(self.slices.items())
            ],
        }

    def lines(self) -> list[str]:
        """The same as a table."""
        told = [
            f"{time_text(start)} {each.messages:>12,} {each.hex}"
            for start, each in sorted(self.slices.items())
        ]
        return [*told, f"{'all':<20} {self.total.messages:>12,} {self.total.hex}"]


def fingerprint(side: Side, level: str, low_ns: int = 0, high_ns: int = FOREVER) -> Fingerprinted:
    """The slices of a level of `pipeline.fingerprints.LEVELS_NS` that begin in a range of time.

    Raises:
        PipelineError: the place cannot be read.
    """
    return sliced(side.name, level, side.fingerprints(level, None), low_ns, high_ns)


def sliced(
    name: str, level: str, found: Fingerprints, low_ns: int = 0, high_ns: int = FOREVER
) -> Fingerprinted:
    """The same of fingerprints that are known."""
    wanted = {start: each for start, each in found.items() if low_ns <= start < high_ns}
    return Fingerprinted(name, level, wanted)


def of_lake(lake: Lake, level: str) -> Fingerprints | None:
    """What an open archive has noted of itself, without Spark; None: it must be computed.

    Raises:
        PipelineError: it cannot be read.
    """
    length_ns = LEVELS_NS[level]
    if length_ns < HOUR_NS:
        return None
    hours = lake.hours()
    return None if lake.unknown_days(hours) else coarser(hours, length_ns)


def of_database(url: str, level: str) -> Fingerprints:
    """What the summaries of a database say, without Spark.

    Raises:
        PipelineError: it does not serve.
    """
    with connected(url) as connection:
        return read_state(connection, level=level).fingerprints
