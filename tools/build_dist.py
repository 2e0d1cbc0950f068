"""Builds both distributions into `dist/`: a wheel and a source distribution of each, checked.

They are built from a copy of the files that git tracks, so that nothing else gets into them.
What builds them, setuptools too, is what the lock file names. The wheel of the node holds the
compiled kernel where there is a C compiler, for every Python from 3.11 on (abi3).
`storenode-proto-VERSION.tar.gz` has the schemas for clients in other languages.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (Path(), Path("packaging", "node"))
PROTO = ROOT / "proto"
PRIVATE = ("storenode", "internal")
"""Schemas that only the node itself reads."""


def main() -> int:
    """Build and check; the exit code is that of the first step that fails."""
    parser = argparse.ArgumentParser(description="Builds wheels and source distributions.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where they go")
    out = parser.parse_args().out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="storenode-build-") as scratch:
        copy_sources(Path(scratch))
        for folder in PROJECTS:
            run("build", "--no-isolation", "--outdir", str(out), str(Path(scratch, folder)))
    packages = [*out.glob("*.whl"), *out.glob("storenode*.tar.gz")]
    run("twine", "check", "--strict", *map(str, packages))
    archive_schemas(out)
    return 0


def copy_sources(target: Path) -> None:
    """Copy the files that git tracks or would add; setuptools leaves others beside them."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def run(module: str, *arguments: str) -> None:
    """Run a module of this interpreter, or end with its exit code."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)


def archive_schemas(out: Path) -> None:
    """Pack the public schemas under their own paths."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = f"storenode-proto-{project['version']}"
    with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "LICENSE", f"{name}/LICENSE")
        for path in public_schemas():
            archive.add(path, f"{name}/{path.relative_to(PROTO).as_posix()}")


def public_schemas() -> list[Path]:
    """Return the schemas for clients and peers, sorted."""
    found = sorted(PROTO.rglob("*.proto"))
    return [path for path in found if path.relative_to(PROTO).parts[:2] != PRIVATE]


if __name__ == "__main__":
    sys.exit(main())
