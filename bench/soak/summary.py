"""What a run prints, and what it writes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.soak.checker.flatness import MIB, Life, Rule, growth
from bench.soak.checker.publishing import Tally
from bench.soak.checker.verdict import Violation

_SHOWN_VIOLATIONS = 20


@dataclass(frozen=True, slots=True)
class Befallen:
    """A fault that happened: seconds of the run, and how long until nodes were in sync after it."""

    fault: str
    victim: str
    what: str
    begun_s: float
    ended_s: float
    recovered_s: float | None


@dataclass(slots=True)
class Summary:
    """Everything that there is to say about a run."""

    seed: int
    seconds: float = 0.0
    faults: list[Befallen] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0
    lost_as_allowed: int = 0
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    participants: dict[str, Any] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    usage: list[dict[str, Any]] = field(default_factory=list)
    judged: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add_tally(self, kind: str, tally: Tally, seconds: float) -> None:
        """What a kind of publisher was told."""
        answers = sorted(tally.seconds)
        self.kinds[kind] = {
            "messages": sum(tally.outcomes.values()),
            "per_s": sum(tally.outcomes.values()) / seconds,
            "outcomes": dict(tally.outcomes),
            "errors": dict(tally.errors),
            "unanswered": tally.unanswered,
            "held_back": tally.held_back,
            "p50_s": answers[len(answers) // 2] if answers else None,
            "p99_s": answers[len(answers) * 99 // 100] if answers else None,
            "most_s": answers[-1] if answers else None,
        }

    def add_usage(self, lives: Sequence[Life], rule: Rule) -> None:
        """What each process used at most, and how it grew in its longest life."""
        for process in sorted({life.process.rpartition(", life ")[0] for life in lives}):
            row: dict[str, Any] = {"process": process}
            for life in lives:
                if life.process.rpartition(", life ")[0] != process:
                    continue
                row[life.measure] = max(row.get(life.measure, 0.0), life.most)
                grown = growth(life, rule)
                self.judged += grown is not None
                if grown is not None and life.measure == "memory":
                    by = (grown.last - grown.first) / MIB
                    row["growth_mib"] = max(by, row.get("growth_mib", by))
            self.usage.append(row)

    def as_json(self) -> dict[str, Any]:
        """The same as an object."""
        return {**asdict(self), "ok": not self.violations}

    def lines(self) -> list[str]:
        """The same for people."""
        found = [f"seed {self.seed}, {self.seconds:.0f} s", "", *self._fault_lines(), ""]
        found += [*self._rate_lines(), "", *self._usage_lines(), ""]
        if not self.violations:
            return [*found, "everything was kept, nothing was invented, nothing grew"]
        found.append(f"{len(self.violations)} violations:")
        found += [f"  {each}" for each in self.violations[:_SHOWN_VIOLATIONS]]
        if len(self.violations) > _SHOWN_VIOLATIONS:
            found.append(f"  and {len(self.violations) - _SHOWN_VIOLATIONS} more")
        return found

    def _fault_lines(self) -> list[str]:
        found = [f"{'at':>6}  {'fault':<18} {'of':<9}  {'lasted':>7}  {'in sync after':>13}  what"]
        for each in self.faults:
            after = "never" if each.recovered_s is None else f"{each.recovered_s:.1f} s"
            lasted = f"{each.ended_s - each.begun_s:.1f} s"
            found.append(
                f"{each.begun_s:5.0f}s  {each.fault:<18} {each.victim:<9}  {lasted:>7}  {after:>13}"
                f"  {each.what}"
            )
        return found + [f"left out: {name}: {why}" for name, why in self.left_out.items()]

    def _rate_lines(self) -> list[str]:
        held = ", ".join(f"{name} {count:,}" for name, count in self.held.items())
        found = [
            f"published {self.published:,}, acknowledged {self.acknowledged:,} messages",
            f"lost though acknowledged, as nobody had promised otherwise: {self.lost_as_allowed:,}",
            f"held at the end: {held}",
        ]
        for kind, told in self.kinds.items():
            outcomes = ", ".join(f"{count:,} {name}" for name, count in told["outcomes"].items())
            errors = ", ".join(f"{count:,} {name}" for name, count in told["errors"].items())
            slowest = ", ".join(
                f"{name} {told[key]:.3f} s"
                for name, key in (("p50", "p50_s"), ("p99", "p99_s"), ("most", "most_s"))
                if told[key] is not None
            )
            found += [
                f"{kind}: {told['per_s']:.1f}/s: {outcomes}; {told['unanswered']:,} unanswered",
                f"    answered after {slowest}; failed calls: {errors or 'none'}",
            ]
        said = ", ".join(f"{name} {value}" for name, value in self.participants.items())
        return [*found, f"participants: {said}"]

    def _usage_lines(self) -> list[str]:
        names = f"{'process':<16}{'memory':>9}{'grew by':>9}{'database':>10}{'sockets':>9}"
        found = [f"{names}{'files':>7}{'threads':>9}   (at most)"]
        for row in self.usage:
            grown = f"{row['growth_mib']:+.0f} MiB" if "growth_mib" in row else "-"
            found.append(
                f"{row['process']:<16}{row['memory'] / MIB:>5.0f} MiB{grown:>9}"
                f"{row['database connections']:>10.0f}{row['sockets']:>9.0f}{row['files']:>7.0f}"
                f"{row['threads']:>9.0f}"
            )
        return found
