"""The programs of the pages about SDS run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import NodeProcess, clean_environment, running_node
from tests.support.pages import ROOT, files, matches, steps
from tests.support.postgres import copy_cluster

PAGE = (ROOT / "docs" / "sds.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "sds-protocol.md").read_text(encoding="utf-8")
RELIABLE = (ROOT / "docs" / "reliable-channel.md").read_text(encoding="utf-8")
PROGRAMS = {name: body for page in (PAGE, PROTOCOL, RELIABLE) for name, body in files(page).items()}
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Return a node with default options."""
    with running_node(copy_cluster(tmp_path_factory.mktemp("sds-page") / "node")) as process:
        yield process


def start(node: NodeProcess, folder: Path, name: str) -> subprocess.Popen[str]:
    (folder / name).write_text(PROGRAMS[name].replace("127.0.0.1:7420", node.listen))
    return subprocess.Popen(
        [sys.executable, name],
        cwd=folder,
        env=clean_environment(PYTHONPATH=str(ROOT), STORENODE=node.listen),
        stdout=subprocess.PIPE,
        text=True,
    )


def printed(program: subprocess.Popen[str]) -> str:
    """Return the output of a program, which must end with exit code 0."""
    with program:
        output, _ = program.communicate(timeout=TIMEOUT_S)
    assert program.returncode == 0, output
    return output


def test_an_asyncio_participant_continues_from_its_state(
    own_node: NodeProcess, tmp_path: Path
) -> None:
    for lines in (1, 2):
        assert printed(start(own_node, tmp_path, "hello.py")) == "alice: hello\n" * lines


def test_many_channels(own_node: NodeProcess, tmp_path: Path) -> None:
    assert printed(start(own_node, tmp_path, "many.py")) == "3 channels\n"
    assert len(list(tmp_path.glob("*.db"))) == 3


def test_signatures_are_verified(own_node: NodeProcess, tmp_path: Path) -> None:
    (step,) = steps(PAGE)
    assert step.command == "python signatures.py"
    assert matches(step.output, printed(start(own_node, tmp_path, "signatures.py")))


def test_a_large_content_and_its_events(own_node: NodeProcess, tmp_path: Path) -> None:
    (step,) = steps(RELIABLE)
    assert step.command == "python album.py"
    output = printed(start(own_node, tmp_path, "album.py"))
    assert matches(step.output, output), output


def test_the_protocol_alone(own_node: NodeProcess, tmp_path: Path) -> None:
    assert printed(start(own_node, tmp_path, "protocol.py")) == "[b'hello']\n"
