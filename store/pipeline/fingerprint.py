"""`fingerprint`: the number of messages of a set, and the XOR of their hashes, by slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from store.pipeline.database import FOREVER, connected, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.fingerprints import LEVELS_NS, NOTHING, Fingerprint, Fingerprints, coarser
from store.pipeline.limits import HOUR_NS
from store.pipeline.message_sets import MessageSet
from store.pipeline.reports import time_text


@dataclass(frozen=True)
class FingerprintReport:
    """The fingerprints of a set by slice."""

    name: str
    level: str
    slices: Fingerprints

    @property
    def sound(self) -> bool:
        """True: there is nothing to find wrong."""
        return True

    @property
    def total(self) -> Fingerprint:
        """The fingerprint of all messages."""
        total = NOTHING
        for each in self.slices.values():
            total = total.joined(each)
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
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
        """Return the report as a table."""
        found = [
            f"{time_text(start)} {each.messages:>12,} {each.hex}"
            for start, each in sorted(self.slices.items())
        ]
        return [*found, f"{'all':<20} {self.total.messages:>12,} {self.total.hex}"]


def fingerprint(
    messages: MessageSet, level: str, low_ns: int = 0, high_ns: int = FOREVER
) -> FingerprintReport:
    """Return the slices of a level of `LEVELS_NS` that begin in a range of time.

    Raises:
        PipelineError: the set cannot be read.
    """
    return sliced(messages.name, level, messages.fingerprints(level, None), low_ns, high_ns)


def sliced(
    name: str, level: str, found: Fingerprints, low_ns: int = 0, high_ns: int = FOREVER
) -> FingerprintReport:
    """Return the report of fingerprints that are known, of a range of time."""
    wanted = {start: each for start, each in found.items() if low_ns <= start < high_ns}
    return FingerprintReport(name, level, wanted)


def recorded_in(archive: DeltaArchive, level: str) -> Fingerprints | None:
    """Return what the commits of an open archive record, without Spark; None: it must be computed.

    Raises:
        PipelineError: the manifest cannot be read.
    """
    manifest, length_ns = archive.manifest, LEVELS_NS[level]
    is_current = manifest.version == archive.version and not manifest.broken
    if length_ns < HOUR_NS or manifest.unknown_days or not is_current:
        return None
    return coarser(manifest.held, length_ns)


def recorded_by(url: str, level: str) -> Fingerprints:
    """Return the summaries of a database, without Spark.

    Raises:
        PipelineError: it does not serve.
    """
    with connected(url) as connection:
        return read_state(connection, level=level).fingerprints
