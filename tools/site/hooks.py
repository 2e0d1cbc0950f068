"""Hooks of MkDocs that complete the documentation's site at build time.

The home page is README.md. The header and the footer name the version. A line with a marker, such
as ``<!-- made of: schemas -->``, becomes a reference generated from the sources. Links that leave
docs/ lead to the repository. The search prefers guides to references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.release import present
from tools.site import references, schemas, versions
from tools.site.links import relocated

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = "index.md"
README: Final = "README.md"
MADE: Final[Mapping[str, Callable[[], str]]] = {
    "<!-- made of: schemas -->": partial(schemas.reference, ROOT / "proto"),
    "<!-- made of: commands -->": references.commands,
    "<!-- made of: benchmarks -->": references.measurements,
    "<!-- made of: metrics -->": references.metrics,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version that the site describes, with a place for links to the others."""
    version = present()
    config.site_name = f"{config.site_name} {version}"
    config.copyright = f"storenode {version}. {config.copyright}{versions.NOTICE}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page."""
    text = (ROOT / README).read_text(encoding="utf-8")
    files.append(File.generated(config, HOME, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs names them
    """Rewrite links, and put in what is made of the sources."""
    place = page.file.src_uri
    source = README if place == HOME else f"docs/{place}"
    if place.startswith("reference/"):
        page.meta["search"] = {"boost": 0.0001}
    text = relocated(markdown, source, place, config.extra["repository"])
    for marker, make in MADE.items():
        if marker in text:
            text = text.replace(marker, make())
    return text
