"""Two distributions take the place of one, and remove none of each other's files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.install.environment import VERSION, Dist, Environment, files_of, library_of, run
from tests.support import release
from tests.support.node import UV


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the version before."""
    return release.built(tmp_path_factory.mktemp("before"))


@pytest.mark.parametrize(("installer", "extra"), [("pip", "embedded"), ("uv", "node")])
def test_an_environment_is_upgraded_in_place(
    dist: Dist, before: Path, tmp_path: Path, installer: str, extra: str
) -> None:
    environment = Environment.made(tmp_path)
    # All that others make is there already, so that nothing but ours is replaced.
    environment.install(dist, library_of(dist, "[embedded]"))
    run(UV, "pip", "uninstall", "--python", str(environment.python), "storenode", "storenode-node")
    environment.install(dist, f"storenode @ {before.as_uri()}")
    assert environment.storenode.ok("--version").out == f"storenode {release.VERSION}\n"

    options = ("--no-index", "--find-links", str(dist.path), f"storenode[{extra}]=={VERSION}")
    if installer == "uv":
        run(UV, "pip", "install", "--python", str(environment.python), *options)
    else:
        run(sys.executable, "-m", "pip", "--python", str(environment.python), "install", *options)

    assert environment.storenode.ok("--version").out == f"storenode {VERSION}\n"
    for wheel in (dist.library, dist.node):
        assert all((environment.site_packages / name).is_file() for name in files_of(wheel))
    gone = {path.partition("/")[0] for path in files_of(before)} - {"reconcile", "store"}
    assert {"dial", "gossip", "message", "sds", "wire"} <= gone
    assert not any((environment.site_packages / name).exists() for name in gone)
    environment.storenode.ok("run", "--help")
