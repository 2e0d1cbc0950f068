"""The list of versions of the site, which every page of every version has.

``python -m tools.site.versions FOLDER`` copies ``build/site`` to ``FOLDER/VERSION`` and writes the
links, which need no JavaScript. ``FOLDER/index.html`` leads to the newest release.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from tools.release import ROOT, present

NOTICE: Final = '<nav class="versions"></nav>'
PLACE: Final = '<nav class="versions">.*?</nav>'


def publish(built: Path, folder: Path, version: str) -> None:
    """Put a built site into the folder of all versions and update the lists of versions."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(built, folder / version)
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=Version)
    newest = max(versions, key=lambda each: (not Version(each).is_prerelease, Version(each)))
    leading = (
        f'<meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">newest</a>'
    )
    (folder / "index.html").write_text(leading, encoding="utf-8")
    for each in versions:
        for page in (folder / each).rglob("*.html"):
            up = "../" * len(page.parent.relative_to(folder).parts)
            text, links = page.read_text(encoding="utf-8"), _links(each, versions, up)
            page.write_text(re.sub(PLACE, links, text), encoding="utf-8")


def _links(shown: str, versions: Sequence[str], up: str) -> str:
    others = [each for each in reversed(versions) if each != shown]
    links = "".join(f'<li><a href="{up}{each}/">{each}</a></li>' for each in others)
    return f'<nav class="versions">Other versions:<ul>{links}</ul></nav>'


if __name__ == "__main__":
    publish(ROOT / "build" / "site", Path(sys.argv[1]), present())
