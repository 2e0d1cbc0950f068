"""A rule that was found broken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """The name of a broken rule, and a sentence that says where it is broken."""

    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def list_violations(rule: str, sentence: str, cases: Collection[object]) -> list[Violation]:
    """Return one violation that counts all cases and names the first few; none without a case."""
    if not cases:
        return []
    shown = ", ".join(
        case.hex() if isinstance(case, bytes) else str(case)
        for case in sorted(cases, key=repr)[:_EXAMPLES]
    )
    more = "" if len(cases) <= _EXAMPLES else ", …"
    return [Violation(rule, f"{len(cases):,} {sentence}: {shown}{more}")]
