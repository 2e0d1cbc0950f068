"""What a node refuses before it starts anything: code 2, one sentence, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.run.helpers import run_to_end
from tests.support.node import COMMAND


def test_wrong_usage_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = run_to_end(tmp_path / "data", "--listen", "0.0.0.0:0")
    assert (ended.code, ended.output) == (2, "")
    assert ended.sentence.startswith("storenode: --listen 0.0.0.0:0 can be reached from other")
    assert len(ended.log.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_made(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "data").write_text("")
    for url in (None, database_url):
        ended = run_to_end(tmp_path / "data", database_url=url)
        assert ended.code == 1
        assert "The data directory" in ended.sentence
        assert "--data-dir" in ended.sentence


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["db", "--help"]])
def test_output_that_cannot_be_written_is_a_failure(arguments: list[str]) -> None:
    with Path(os.devnull).open("rb") as read_only:
        ended = subprocess.run(
            [COMMAND, *arguments], stdout=read_only, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == (b"storenode: The output could not be written (Bad file descriptor).\n")
