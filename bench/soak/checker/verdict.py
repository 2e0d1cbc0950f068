"""What a rule found broken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold, and a sentence that says where."""

    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def violation(rule: str, sentence: str, cases: Collection[object]) -> list[Violation]:
    """One violation for all cases of a kind, which names the first few; none without a case."""
    if not cases:
        return []
    shown = ", ".join(
        each.hex() if isinstance(each, bytes) else str(each)
        for each in sorted(cases, key=repr)[:_EXAMPLES]
    )
    more = "" if len(cases) <= _EXAMPLES else ", …"
    return [Violation(rule, f"{len(cases):,} {sentence}: {shown}{more}")]
