"""Links of the documentation that work both in the repository and on the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BRANCH: Final = "main"
DOCS: Final = "docs/"
FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def relocated(markdown: str, source: str, place: str, repository: str) -> str:
    """Rewrite the relative links of a page of the repository for its place on the site.

    ``source`` is its path in the repository, ``place`` that among the site's pages. Files of docs/
    are linked as pages, all others at the ``repository``'s address.
    """

    def rewrite(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        return f"]({destination(path, place, repository)}{anchor})"

    parts = FENCED.split(markdown)
    parts[0::2] = [LINK.sub(rewrite, part) for part in parts[0::2]]
    return "".join(parts)


def destination(path: str, place: str, repository: str) -> str:
    """Return the link to a file or folder of the repository from a page of the site."""
    if (ROOT / path).is_dir() and path.startswith(DOCS):
        path += "/README.md"
    if path.startswith(DOCS):
        return posixpath.relpath(path.removeprefix(DOCS), posixpath.dirname(place) or ".")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository}/{kind}/{BRANCH}/{path}"
