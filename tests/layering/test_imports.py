"""The contracts of import-linter hold, and find what breaks them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.rooms import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages and their contracts."""
    copy = tmp_path_factory.mktemp("sources")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for package in ("chaos", "migrations", "reconcile", "sim", "store", "storenode"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.so"))
    return copy


def broken(sources: Path) -> list[str]:
    command = [str(LINTER), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == int(any(" BROKEN" in line for line in lines)), done.stdout
    return [line.partition(" BROKEN")[0] for line in lines if " BROKEN" in line]


def test_the_contracts_hold() -> None:
    assert broken(ROOT) == []


@pytest.mark.parametrize(
    ("module", "source", "contract"),
    [
        ("store/db/pool.py", "import store.rpc.server", "room of the node"),
        ("store/db/pool.py", "from store.config import node", "given their settings"),
        ("store/runtime/node.py", "from store.cli import main", "room of the node"),
        ("store/elsewhere.py", "", "room of the node"),
        ("storenode/sds/codec.py", "import store", "both the library"),
        ("storenode/message/hashing.py", "def late(): import storenode.client", "library's rooms"),
        ("store/domain/admission.py", "from storenode.wire.sds.v1 import message_pb2", "Protobuf"),
        ("store/domain/admission.py", "import time", "no clock"),
        ("store/sync/limits.py", "import asyncio", "no event loop"),
        ("store/gossip/machine.py", "import store.gossip.driver", "know their drivers"),
        ("chaos/checker/stores.py", "import store.messages", "shares no code"),
    ],
)
def test_an_import_that_breaks_a_contract_is_found(
    sources: Path, module: str, source: str, contract: str
) -> None:
    path = sources / module
    before = path.read_text(encoding="utf-8") if path.exists() else None
    path.write_text(f"{before or ''}\n{source}\n", encoding="utf-8")
    try:
        assert contract in " ".join(broken(sources))
    finally:
        path.write_text(before, encoding="utf-8") if before is not None else path.unlink()
