"""The summary of a soak, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.checker.clients import AnswerCounts
from chaos.checker.growth import MIB, Life, Rule, measure_growth
from chaos.checker.violation import Violation

_SHOWN_VIOLATIONS = 20


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault that was injected, in seconds of the run, and the time until nodes were in sync."""

    fault: str
    victim: str
    what: str
    begun_s: float
    ended_s: float
    recovered_s: float | None


@dataclass(slots=True)
class Summary:
    """The summary of a run."""

    seed: int
    seconds: float = 0.0
    faults: list[FaultRecord] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0
    lost_as_allowed: int = 0
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    participants: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    usage: list[dict[str, Any]] = field(default_factory=list)
    judged: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add_answers(self, kind: str, answers: AnswerCounts, seconds: float) -> None:
        """Add the answers to a kind of publisher."""
        times_s = sorted(answers.seconds)
        self.kinds[kind] = {
            "messages": sum(answers.outcomes.values()),
            "per_s": sum(answers.outcomes.values()) / seconds,
            "outcomes": dict(answers.outcomes),
            "errors": dict(answers.errors),
            "unanswered": answers.unanswered,
            "skipped_turns": answers.skipped_turns,
            "p50_s": times_s[len(times_s) // 2] if times_s else None,
            "p99_s": times_s[len(times_s) * 99 // 100] if times_s else None,
            "most_s": times_s[-1] if times_s else None,
        }

    def add_usage(self, lives: Sequence[Life], rule: Rule) -> None:
        """Add the most that each process used, and the most that it grew in one life."""
        for process in sorted({life.process.rpartition(", life ")[0] for life in lives}):
            row: dict[str, Any] = {"process": process}
            for life in lives:
                if life.process.rpartition(", life ")[0] != process:
                    continue
                row[life.measure] = max(row.get(life.measure, 0.0), life.most)
                grown = measure_growth(life, rule)
                self.judged += grown is not None
                if grown is not None and life.measure == "memory":
                    by = (grown.last - grown.first) / MIB
                    row["growth_mib"] = max(by, row.get("growth_mib", by))
            self.usage.append(row)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as an object."""
        return {**asdict(self), "ok": not self.violations}

    def lines(self) -> list[str]:
        """Return the lines of the summary."""
        found = [f"seed {self.seed}, {self.seconds:.0f} s", "", *self._fault_lines(), ""]
        found += [*self._rate_lines(), "", *self._usage_lines(), ""]
        if not self.violations:
            return [*found, "all rules hold"]
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
        stored = ", ".join(f"{name} {count:,}" for name, count in self.stored.items())
        found = [
            f"published {self.published:,}, acknowledged {self.acknowledged:,} messages",
            f"lost after an acknowledgement that no longer binds: {self.lost_as_allowed:,}",
            f"held at the end: {stored}",
        ]
        for kind, counts in self.kinds.items():
            outcomes = ", ".join(f"{count:,} {name}" for name, count in counts["outcomes"].items())
            errors = ", ".join(f"{count:,} {name}" for name, count in counts["errors"].items())
            slowest = ", ".join(
                f"{name} {counts[key]:.3f} s"
                for name, key in (("p50", "p50_s"), ("p99", "p99_s"), ("most", "most_s"))
                if counts[key] is not None
            )
            found += [
                f"{kind}: {counts['per_s']:.1f}/s: {outcomes}; {counts['unanswered']:,} unanswered",
                f"    answered after {slowest}; failed calls: {errors or 'none'}",
            ]
        shown = ", ".join(f"{name} {value}" for name, value in self.participants.items())
        return [*found, f"participants: {shown}"]

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
