"""Generates the package `storenode.wire` from the schemas under `proto/`.

`python tools/generate_wire.py` rewrites `storenode/wire/`; with `--check` it writes nothing and
exits 1 when what is committed differs from what the schemas give.

The schemas keep their own paths, which descriptors and so server reflection show, while the
Python modules move below `storenode.wire`: the import paths in the generated text are rewritten, so
that nothing but `storenode` is a top-level name.
"""

import importlib.resources
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.rooms import ROOT, write_or_check

PROTO_DIR = ROOT / "proto"
WIRE_DIR = ROOT / "storenode" / "wire"
WIRE_PACKAGE = "storenode.wire"
ROOT_DOCSTRING = '"""Classes generated from the schemas in `proto/`; never edited by hand."""\n'
SUBPACKAGE_DOCSTRING = '"""Generated from the schemas of the same name in `proto/`."""\n'


def main() -> int:
    """Write the package, or compare it with ``--check``; return the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        generated = generate(Path(scratch))
    texts: dict[Path, str | None] = dict.fromkeys(
        path for path in WIRE_DIR.rglob("*.py*") if "__pycache__" not in path.parts
    )
    texts |= {WIRE_DIR / path: text for path, text in generated.items()}
    return write_or_check(texts, "tools/generate_wire.py")


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
    return as_package(texts, sorted({source.partition("/")[0] for source in sources}))


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


if __name__ == "__main__":
    raise SystemExit(main())
