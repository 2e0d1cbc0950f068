"""The programs of docs/sds.md run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.node import NodeProcess, clean_environment
from tests.support.pages import ROOT, blocks


def programs(page: str) -> list[str]:
    return blocks((ROOT / page).read_text(encoding="utf-8"), "python")


def program() -> str:
    return programs("docs/sds.md")[0]


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


def test_the_core_is_driven_as_the_page_shows(tmp_path: Path) -> None:
    """The two pieces on the core, one after the other; and one that joins through a bus."""
    _, on_a_bus, driving, keeping = programs("docs/sds.md")
    core = tmp_path / "core.py"
    core.write_text(f"{driving}\n{keeping}\nassert snapshot(channel) == data\n")
    lines = (
        "import asyncio, random",
        "from storenode.sds.aio.bus import Bus",
        "from storenode.sds.aio.channel import Channel",
    )
    joined = "".join(f"    {line}\n" for line in on_a_bus.splitlines())
    bus = tmp_path / "bus.py"
    bus.write_text("\n".join(lines) + f"\nasync def main():\n{joined}\nasyncio.run(main())\n")
    for script in (core, bus):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=clean_environment(PYTHONPATH=str(ROOT)),
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
