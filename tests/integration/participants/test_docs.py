"""The programs of the pages about SDS run as they stand there, under their names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import NodeProcess, clean_environment, running_node
from tests.support.pages import ROOT, blocks, matches, steps
from tests.support.postgres import copy_cluster

PAGE = (ROOT / "docs" / "sds.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "sds-protocol.md").read_text(encoding="utf-8")
RELIABLE = (ROOT / "docs" / "reliable-channel.md").read_text(encoding="utf-8")
FILES = {
    body.splitlines()[0].removeprefix("# "): body
    for page in (PAGE, PROTOCOL, RELIABLE)
    for body in blocks(page, "python")
}
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node as a reader starts it, with all that is usual."""
    with running_node(copy_cluster(tmp_path_factory.mktemp("sds-page") / "node")) as process:
        yield process


def start(node: NodeProcess, folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / name).write_text(FILES[name])
    return subprocess.Popen(
        [sys.executable, name, *arguments],
        cwd=folder,
        env=clean_environment(PYTHONPATH=str(ROOT), STORENODE=node.listen),
        stdout=subprocess.PIPE,
        text=True,
    )


def printed(program: subprocess.Popen[str]) -> str:
    """What a program prints until it ends by itself, which it must do well."""
    with program:
        output, _ = program.communicate(timeout=TIMEOUT_S)
    assert program.returncode == 0, output
    return output


def test_the_page_has_these_programs() -> None:
    names = ["chat.py", "heal.py", "many.py", "signed.py", "protocol.py", "album.py"]
    assert list(FILES) == names


def test_participants_that_talk_at_once_print_the_same_log_and_keep_it(
    own_node: NodeProcess, tmp_path: Path
) -> None:
    (both,) = [body for body in blocks(PAGE, "sh") if "chat.py alice" in body]
    said = re.findall(r"python chat\.py (\w+) '(.+?)'", both)
    assert len(said) == 2
    programs = [start(own_node, tmp_path, "chat.py", *each) for each in said]
    one, other = map(printed, programs)
    assert one == other
    lines = [f"{name}: {line}" for name, line in said]
    assert sorted(one.splitlines()) == sorted(lines)
    shown = printed(start(own_node, tmp_path, "chat.py", "alice", "again"))
    assert shown == f"{one}alice: again\n"
    assert {path.name for path in tmp_path.glob("*.db")} == {"alice.db", "bob.db"}


def test_lost_messages_are_fetched(own_node: NodeProcess, tmp_path: Path) -> None:
    step, _ = steps(PAGE)
    assert step.command == "python heal.py"
    output = printed(start(own_node, tmp_path, "heal.py"))
    assert matches(step.output, output), output
    assert "by_hint" in output or "closure" in output


def test_many_channels(own_node: NodeProcess, tmp_path: Path) -> None:
    shown = printed(start(own_node, tmp_path, "many.py"))
    assert shown == "100 channels, the last one is synced\n"
    assert len(list(tmp_path.glob("room-*.db"))) == 100


def test_signatures_are_verified(own_node: NodeProcess, tmp_path: Path) -> None:
    _, step = steps(PAGE)
    assert step.command == "python signed.py"
    assert matches(step.output, printed(start(own_node, tmp_path, "signed.py")))


def test_a_large_content_and_its_events(own_node: NodeProcess, tmp_path: Path) -> None:
    (step,) = steps(RELIABLE)
    assert step.command == "python album.py"
    output = printed(start(own_node, tmp_path, "album.py"))
    assert matches(step.output, output), output


def test_the_protocol_alone(own_node: NodeProcess, tmp_path: Path) -> None:
    assert printed(start(own_node, tmp_path, "protocol.py")) == "[b'hello']\n"
