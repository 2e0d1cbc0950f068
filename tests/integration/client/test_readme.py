"""Every command of the README is run, and what it prints is what the README shows.

Commands stand in ``console`` blocks after ``$ ``, and what follows them is their output, where
``...`` stands for any text. One shell runs a section, so that a command may use a variable of one
before. grpcurl is a script of ours that makes the same calls by reflection.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.fleet import exchanging
from tests.support.node import COMMAND, clean_environment, running_node

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SEVERAL_NODES = "## Several nodes on one Postgres"
FIRST_PEER = "## A first peer"
TIMEOUT_S = 100.0

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the output that the README shows for it."""

    command: str
    output: str


def blocks(language: str, text: str) -> list[str]:
    return [body for found, body in BLOCK.findall(text) if found == language]


def steps(text: str) -> list[Step]:
    found = []
    for body in blocks("console", text):
        before, *parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
        assert before == "", "a console block begins with a command"
        for part in parts:
            command, _, output = part.partition("\n")
            found.append(Step(command, output))
    return found


def section(title: str) -> str:
    return README.split(title, 1)[1].split("\n## ", 1)[0]


def matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def run_in_one_shell(todo: list[Step], env: dict[str, str]) -> None:
    # A NUL tells where the output of a command ends, and its exit code follows.
    script = "".join(f"{step.command}\nprintf '\\0%s\\0' $?\n" for step in todo)
    done = subprocess.run(
        ["bash"],
        input=script.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=clean_environment(**env),
        timeout=TIMEOUT_S,
        check=True,
    )
    parts = done.stdout.decode().split("\0")
    outputs, codes = parts[0::2], parts[1::2]
    for step, output, code in zip(todo, outputs, codes, strict=False):
        assert code == "0", f"{step.command} ended with {code}:\n{output}"
        assert matches(step.output, output), (
            f"{step.command} printed\n{output}\nbut the README shows\n{step.output}"
        )
    assert len(codes) == len(todo)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path with the command, this Python and our grpcurl."""
    tools = tmp_path / "tools"
    tools.mkdir()
    script = shlex.join([sys.executable, str(ROOT / "tests" / "support" / "grpcurl.py")])
    grpcurl = tools / "grpcurl"
    grpcurl.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    grpcurl.chmod(0o755)
    return f"{tools}:{Path(COMMAND).parent}:/usr/local/bin:/usr/bin:/bin"


def test_a_first_visit_is_as_the_readme_tells_it(tmp_path: Path, path: str) -> None:
    before, after = README.split(SEVERAL_NODES)
    todo = steps(before)
    assert len(todo) > len(steps(after)) > 0
    with running_node(tmp_path / "node") as node:
        documented = f"127.0.0.1:7420={node.listen} 127.0.0.1:7421={node.admin}"
        addresses = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
        run_in_one_shell(todo, {"PATH": path, "GRPCURL_ADDRESSES": documented, **addresses})


def test_several_nodes_share_a_database_as_the_readme_tells_it(
    empty_database_url: str, tmp_path: Path, path: str
) -> None:
    text = section(SEVERAL_NODES)
    (setup,) = blocks("sh", text)
    assert "\nstorenode db upgrade\n" in setup
    Command().ok("db", "upgrade", STORENODE_DATABASE_URL=empty_database_url)
    with (
        running_node(tmp_path / "node-a", STORENODE_DATABASE_URL=empty_database_url) as a,
        running_node(tmp_path / "node-b", STORENODE_DATABASE_URL=empty_database_url) as b,
    ):
        assert a.ready["database"] == b.ready["database"] == "external"
        run_in_one_shell(steps(text), {"PATH": path, "A": a.listen, "B": b.listen})


def test_two_stores_are_peers_as_the_readme_tells_it(tmp_path: Path, path: str) -> None:
    own_schedule = ("--sync-interval", "0")
    with (
        running_node(tmp_path / "a", *own_schedule) as a,
        running_node(tmp_path / "b", *own_schedule, "--peer", a.peer) as b,
    ):
        env = {"PATH": path, "A": a.listen, "B": b.listen, "ADMIN_B": b.admin}
        for node in (a, b):
            exchanging(node, 1)
        run_in_one_shell(steps(section(FIRST_PEER)), env)


def test_the_readme_names_only_options_that_exist() -> None:
    for block in blocks("sh", README):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("storenode "):
                continue
            words = shlex.split(line.rstrip(" &"), comments=True)[1:]
            names = [word for word in words if not word.startswith(("-", ".", "/", "1"))]
            text = Command().ok(*names, "--help").out
            for flag in (word for word in words if word.startswith("--")):
                assert f" {flag} " in text, f"{line} has an unknown option {flag}"


def test_the_first_commands_of_the_readme_are_targets_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", "".join(blocks("sh", README)), re.MULTILINE)
    assert targets == ["demo", "run", "test"]
    for target in targets:
        assert f"\n{target}: " in makefile


@pytest.mark.parametrize("link", sorted(set(LINK.findall(README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_a_shown_output_matches_with_its_gaps_only() -> None:
    assert matches("a ... c\n", "a b\nb c\n")
    assert not matches("a ... c\n", "a b c d\n")
    assert not matches("a.c\n", "abc\n")
