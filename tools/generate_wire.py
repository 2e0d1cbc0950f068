"""Generates the package `storenode.wire` from the schemas under `proto/`.

`python tools/generate_wire.py` rewrites `storenode/wire/`; with `--check` it writes nothing and
exits 1 when what is committed differs from what the schemas give.

The schemas keep their own paths, which descriptors and so server reflection show, while the
Python modules move below `storenode.wire`: the import paths in the generated text are rewritten, so
that nothing but `storenode` is a top-level name.
"""

import argparse
import importlib.resources
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto"
WIRE_DIR = ROOT / "storenode" / "wire"
WIRE_PACKAGE = "storenode.wire"
ROOT_DOCSTRING = '"""Classes generated from the schemas in `proto/`; never edited by hand."""\n'
SUBPACKAGE_DOCSTRING = '"""Generated from the schemas of the same name in `proto/`."""\n'


def main() -> int:
    """Run the command line; return the exit code (0: done or fresh, 1: stale or failed)."""
    parser = argparse.ArgumentParser(description="Generates storenode/wire/ from proto/.")
    parser.add_argument("--check", action="store_true", help="only compare, change nothing")
    check_only = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generated = generate(Path(scratch))
    return check(generated) if check_only else install(generated)


def generate(out_dir: Path) -> dict[str, str]:
    """Compile every schema into `out_dir`; returns the package's files as path -> text."""
    sources = sorted(path.relative_to(PROTO_DIR).as_posix() for path in PROTO_DIR.rglob("*.proto"))
    scripts = Path(sysconfig.get_path("scripts"))
    arguments = [
        "protoc",
        f"--proto_path={PROTO_DIR}",
        f"--proto_path={importlib.resources.files('grpc_tools') / '_proto'}",
        f"--python_out={out_dir}",
        f"--grpc_python_out={out_dir}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out=quiet:{out_dir}",
        f"--mypy_grpc_out=quiet:{out_dir}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("The schemas in proto/ do not compile; the lines above say where.")
    texts = {
        path.relative_to(out_dir).as_posix(): path.read_text(encoding="utf-8")
        for path in out_dir.rglob("*.py*")
    }
    return as_package(texts, top_level_names(sources))


def top_level_names(sources: list[str]) -> list[str]:
    """Return the first folder of every schema, such as `sds`, once each and sorted."""
    return sorted({source.split("/", 1)[0] for source in sources})


def as_package(texts: dict[str, str], names: list[str]) -> dict[str, str]:
    """Move generated modules below `wire`, and drop the service modules without a service."""
    with_service = {
        path.removesuffix(".py")
        for path, text in texts.items()
        if re.search(r"^class .*Stub", text, re.MULTILINE)
    }
    package = {"__init__.py": ROOT_DOCSTRING}
    for path, text in texts.items():
        stem = path.removesuffix(".pyi").removesuffix(".py")
        if stem.endswith("_pb2_grpc") and stem not in with_service:
            continue
        package[path] = relocate(text, names)
        for folder in list(Path(path).parents)[:-1]:
            package[f"{folder.as_posix()}/__init__.py"] = SUBPACKAGE_DOCSTRING
    return package


def relocate(text: str, names: list[str]) -> str:
    """Rewrite the imports of our own modules, and the module name that classes report."""
    alternatives = "|".join(re.escape(name) for name in names)
    text = re.sub(
        rf"^from ({alternatives})\b", rf"from {WIRE_PACKAGE}.\1", text, flags=re.MULTILINE
    )
    return re.sub(
        rf"(BuildTopDescriptorsAndMessages\(DESCRIPTOR, ')({alternatives})\b",
        rf"\1{WIRE_PACKAGE}.\2",
        text,
    )


def installed() -> dict[str, str]:
    """Return the files of `storenode/wire/` without caches, as path -> text."""
    return {
        path.relative_to(WIRE_DIR).as_posix(): path.read_text(encoding="utf-8")
        for path in WIRE_DIR.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check(generated: dict[str, str]) -> int:
    """Compare with what is there; name every stale file and the command that mends it."""
    present = installed()
    stale = sorted(
        path
        for path in present.keys() | generated.keys()
        if present.get(path) != generated.get(path)
    )
    if not stale:
        return 0
    listed = ", ".join(f"storenode/wire/{path}" for path in stale)
    sys.stderr.write(
        f"storenode/wire/ is not what proto/ gives ({listed}); run `make proto` and commit it.\n"
    )
    return 1


def install(generated: dict[str, str]) -> int:
    """Replace what is there, touching only the files that change so that readers see no gap."""
    present = installed()
    for path in present.keys() - generated.keys():
        (WIRE_DIR / path).unlink()
    for path, text in sorted(generated.items()):
        target = WIRE_DIR / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if present.get(path) != text:
            target.write_text(text, encoding="utf-8")
    remove_empty_folders()
    return 0


def remove_empty_folders() -> None:
    """Delete folders of `storenode/wire/` that hold no module any more, with their caches."""
    for folder in sorted((path for path in WIRE_DIR.rglob("*") if path.is_dir()), reverse=True):
        if folder.is_dir() and not any(folder.rglob("*.py")):
            shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(main())
