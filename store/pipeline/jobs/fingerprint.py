"""`fingerprint`: how many messages a place holds, and the XOR of their hashes, slice by slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints
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


def fingerprint(
    side: Side, level: str, low_ns: int | None = None, high_ns: int | None = None
) -> Fingerprinted:
    """The slices of a level of `pipeline.fingerprints.LEVELS_NS` that begin in a range of time.

    Raises:
        PipelineError: the place cannot be read.
    """
    found = side.fingerprints(level, None)
    wanted = {
        start: each
        for start, each in found.items()
        if (low_ns is None or start >= low_ns) and (high_ns is None or start < high_ns)
    }
    return Fingerprinted(side.name, level, wanted)
