"""Gives the links of the README their addresses, for the pages of package indexes.

Everything else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/storenode/storenode/blob/main"
PICTURES = "https://raw.githubusercontent.com/storenode/storenode/main"
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")


def absolute(link: re.Match[str]) -> str:
    """Return a link or picture of the repository with its address."""
    mark, text, path = link.groups()
    return f"{mark}{text}({PICTURES if mark else REPOSITORY}/{path})"


setup(
    long_description=RELATIVE.sub(absolute, Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
