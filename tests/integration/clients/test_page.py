"""The page on other languages: its code is that of the examples, its commands work."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.integration.clients.languages import LANGUAGES, PAGE, Language, shell
from tests.support import grpcurl
from tests.support.node import NodeProcess
from tests.support.pages import ROOT, as_shown, blocks, section, steps
from tools.build_dist import archive_schemas, public_schemas


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.title)
def test_the_page_shows_the_lines_of_the_example(language: Language) -> None:
    regions = language.regions()
    web = {"web"} if "STORENODE_URL" in language.ways else set()
    shown = {"connect", "publish", "follow", "tls"} | web
    assert sorted(blocks(language.section, language.fence)) == sorted(
        regions[name] for name in shown
    )


LOCKS = ("examples/typescript", "tests/integration/gateway/javascript")


@pytest.mark.parametrize("folder", LOCKS)
def test_a_lock_of_npm_has_hashes_and_names_no_host(folder: str) -> None:
    text = (ROOT / folder / "package-lock.json").read_text(encoding="utf-8")
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}
    assert packages
    assert all("integrity" in each and "resolved" not in each for each in packages.values())
    assert "://" not in text


def test_the_page_shows_what_grpcurl_prints(node: NodeProcess, tmp_path: Path) -> None:
    env = {
        "PATH": grpcurl.installed(tmp_path),
        "GRPCURL_ADDRESSES": f"127.0.0.1:7420={node.listen}",
    }
    todo = steps(section(PAGE, "grpcurl"))
    assert len(todo) == 2
    as_shown(todo, env)


def test_the_archive_compiles_as_the_page_says(tmp_path: Path) -> None:
    archive_schemas(tmp_path)
    (archive,) = tmp_path.glob("storenode-proto-*.tar.gz")
    folder = archive.name.removesuffix(".tar.gz")
    shell(f"tar --extract --file {archive.name}", tmp_path)
    assert len([*(tmp_path / folder).rglob("*.proto")]) == len(public_schemas())

    # The protoc of grpcio-tools, which generates Python instead of Java.
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    plugin = {"protoc_builtin": "python", "protoc_path": protoc, "out": "gen"}
    (tmp_path / "buf.gen.yaml").write_text(json.dumps({"version": "v2", "plugins": [plugin]}))
    by_buf, by_protoc = (
        command.replace("storenode-proto-VERSION", folder)
        for command in blocks(section(PAGE, "The schemas"), "sh")
    )
    shell(by_buf, tmp_path)
    shell(
        by_protoc.replace("protoc ", shlex.join(protoc) + " ").replace("java", "python"), tmp_path
    )
    made = {path.relative_to(tmp_path / "gen") for path in (tmp_path / "gen").rglob("*_pb2.py")}
    assert len(made) == len(public_schemas())
    assert {path.relative_to(tmp_path / "src") for path in (tmp_path / "src").rglob("*.py")} < made
