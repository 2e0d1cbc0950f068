"""The quick start of docs/pipeline.md, as a reader goes through it.

Jobs are given to the command here, and have the session that all tests share.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from storenode.cli.main import main
from tests.support.node import COMMAND, clean_environment, running_node
from tests.support.pages import ROOT, Step, blocks, matches, section, steps

START = section((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), "Quick start")
PUBLISHING = next(body for body in blocks(START, "sh") if "storenode publish" in body)
ARCHIVING, VERIFYING, AUDITING, COMPARING, RESTORING, COMPARING_AGAIN = steps(START)

TIMEOUT_S = 240.0

pytestmark = pytest.mark.usefixtures("spark")


def run(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the page in the reader's folder."""
    path = f"{Path(COMMAND).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=clean_environment(PATH=path, **env),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_step(step: Step, folder: Path, code: int = 0) -> None:
    """Assert that a job prints what the page shows."""
    program, *arguments = shlex.split(step.command)
    assert program == "storenode"
    with (
        chdir(folder),
        redirect_stdout(StringIO()) as printed,
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    assert ended.value.code == code
    assert matches(step.output, printed.getvalue()), printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create the reader's folder, with the node's data and the archive of what was published."""
    path = tmp_path_factory.mktemp("reader")
    with running_node(path / "storenode-data") as node:
        done = run(PUBLISHING, path, {"STORENODE_NODE": node.listen})
        assert done.stdout.decode().count("STORED") == 2, done.stderr.decode()
        run_step(ARCHIVING, path)
        yield path


def test_the_archive_is_sound(folder: Path) -> None:
    run_step(VERIFYING, folder)


def test_the_audit_finds_the_gap(folder: Path) -> None:
    run_step(AUDITING, folder, code=1)


def test_another_store_is_filled(folder: Path) -> None:
    with running_node(folder / "restored"):
        run_step(COMPARING, folder, code=1)
        run_step(RESTORING, folder)
        run_step(COMPARING_AGAIN, folder)
