"""The program of docs/sds.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.node import NodeProcess, clean_environment

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program() -> str:
    found = BLOCK.search((ROOT / "docs" / "sds.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def test_twenty_lines_make_a_participant(node: NodeProcess, room: str, tmp_path: Path) -> None:
    script = tmp_path / "room.py"
    script.write_text(program())
    assert len(program().splitlines()) <= 20
    names = ("alice", "bob")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), node.listen, room, name, f"{name} was here"],
            cwd=tmp_path,
            env=clean_environment(PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            seen = {process.stdout.readline() for _ in names}
            assert seen == {f"{name}: {name} was here\n" for name in names}
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert {path.name for path in tmp_path.glob("*.db")} == {"alice.db", "bob.db"}
