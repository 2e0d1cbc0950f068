"""The prose of the pages: proselint's checks, and the phrases that `tools/style.toml` replaces.

Code, links and tables' rules are left out. Exit code 1 if any page has a finding.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proselint.checks import __register__
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.check_style import find_phrases, read_words
from tools.rooms import ROOT

PAGES: Final = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/**/*.md")
OFF: Final = (
    *("annotations", "dates_times", "lexical_illusions", "redundancy", "typography"),
    *("uncomparables", "weasel_words"),
)
"""Groups of checks that do not apply: quotes of code, numbers of tables, terms of the field."""
_CODE: Final = re.compile(
    r"^```.*?^```$|`[^`\n]+`|<[^>\n]+>|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL
)


def prose_of(text: str) -> str:
    """Return a page with code, markup and targets of links blanked, in the same lines."""
    return _CODE.sub(
        lambda found: re.sub(r"[^\n]", "x" if "`" in found[0][:1] else " ", found[0]), text
    )


def findings(name: str, text: str, phrases: dict[str, str], config: Config) -> Iterator[str]:
    """Return a line for each finding in a page."""
    prose = prose_of(text)
    for line, message in find_phrases(prose, phrases):
        yield f"{name}:{line + 1}: {message}"
    for result in LintFile(source=name, content=prose).lint(config):
        line, _ = result.pos
        yield f"{name}:{line}: {result.check_result.check_path}: {result.check_result.message}"


def main() -> int:
    """Print the findings of all pages."""
    phrases = read_words().prose
    CheckRegistry().register_many(__register__)
    checks = {name: on and name not in OFF for name, on in DEFAULT["checks"].items()}
    config = Config(max_errors=DEFAULT["max_errors"], checks=checks)
    found = [
        line
        for pattern in PAGES
        for page in sorted(ROOT.glob(pattern))
        for line in findings(
            str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"), phrases, config
        )
    ]
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
