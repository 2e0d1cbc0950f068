"""Sets the version everywhere, and prints what the changelog says about it.

    python tools/release.py version 0.2.0        before a release is tagged
    python tools/release.py version 0.3.0.dev0   after it
    python tools/release.py notes v0.2.0         what the page of the release says

`docs/releasing.md` is the whole recipe.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECTS: Final = (ROOT / "pyproject.toml", ROOT / "packaging" / "node" / "pyproject.toml")
CHANGELOG: Final = ROOT / "CHANGELOG.md"
MANIFESTS: Final = ROOT / "deploy" / "kubernetes" / "overlays"
UNRELEASED: Final = "## Unreleased\n"


def main() -> int:
    """Run the command line; a refusal is one sentence and exit code 1."""
    parser = argparse.ArgumentParser(description="Sets the version, and tells what is new in it.")
    commands = parser.add_subparsers(dest="command", required=True)
    setting = commands.add_parser("version", help="set the version everywhere")
    setting.add_argument("version")
    noting = commands.add_parser("notes", help="print the section of the changelog")
    noting.add_argument("tag")
    given = parser.parse_args()
    if given.command == "version":
        set_version(given.version, datetime.datetime.now(datetime.UTC).date())
    else:
        sys.stdout.write(notes(given.tag))
    return 0


def set_version(text: str, today: datetime.date) -> None:
    """Write a newer version into both projects; a release also into the changelog and manifests."""
    old = present()
    try:
        new = Version(text)
    except InvalidVersion:
        raise SystemExit(f"{text} is no version: write one such as 0.2.0 or 0.3.0.dev0.") from None
    if str(new) != text or new <= Version(old):
        raise SystemExit(
            f"{text} does not follow {old}: name a later version, in its shortest form."
        )
    if _git("status", "--porcelain"):
        raise SystemExit("The working tree has changes: commit them, or put them aside, first.")
    changelog = CHANGELOG.read_text(encoding="utf-8")
    CHANGELOG.write_text(
        opened(changelog) if new.is_devrelease else closed(changelog, text, today), encoding="utf-8"
    )
    for project in PROJECTS:
        body = project.read_text(encoding="utf-8").replace(
            f'version = "{old}"', f'version = "{new}"'
        )
        project.write_text(body.replace(f'=={old}"', f'=={new}"'), encoding="utf-8")
    for manifest in MANIFESTS.glob("*/kustomization.yaml"):
        body = manifest.read_text(encoding="utf-8")
        manifest.write_text(re.sub(r"newTag: [\w.]+", f"newTag: {new}", body), encoding="utf-8")


def present() -> str:
    """Return the version of the project."""
    project = tomllib.loads(PROJECTS[0].read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def closed(changelog: str, version: str, today: datetime.date) -> str:
    """Return the changelog with what is unreleased under a version."""
    if not _section(changelog, UNRELEASED).strip():
        raise SystemExit("The changelog has nothing under `## Unreleased`: say what is new, first.")
    return changelog.replace(UNRELEASED, f"## {version} - {today.isoformat()}\n", 1)


def opened(changelog: str) -> str:
    """Return the changelog with a place for what comes next."""
    if UNRELEASED in changelog:
        raise SystemExit("The changelog has a section `## Unreleased`: release that, first.")
    before, heading, after = changelog.partition("\n## ")
    return f"{before}\n{UNRELEASED}{heading}{after}"


def notes(tag: str) -> str:
    """Return what is new in the version that a tag names, which must be that of the project."""
    version = present()
    if tag != f"v{version}":
        raise SystemExit(
            f"The tag is {tag}, and the project has version {version}: tag v{version}."
        )
    changelog = CHANGELOG.read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n", changelog, re.MULTILINE)
    if heading is None:
        raise SystemExit(f"The changelog has no section of {version} with a date: add it, first.")
    return _section(changelog, heading[0]).strip() + "\n"


def _section(changelog: str, heading: str) -> str:
    return changelog.partition(heading)[2].partition("\n## ")[0]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
