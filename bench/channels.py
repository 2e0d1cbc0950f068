"""Channels of one process at one node: memory, threads, descriptors, and what silence costs.

Each channel has a state file. ``--messages`` is the number of channels. The baseline, in a process
of its own, joins a tenth of them one by one, each with its own connection and thread; its figures
are per channel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.support import bench_node, options, report


def in_process(way: str, listen: str, folder: Path, count: int) -> dict[str, float]:
    """Measure in a process that has nothing else."""
    folder.mkdir()
    command = [sys.executable, "-m", "bench.channels_apart", way, listen, str(folder), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Run both ways."""
    given = options(__doc__ or "", messages=1_000)
    with bench_node() as bench, tempfile.TemporaryDirectory(prefix="storenode-bench-") as name:
        listen, folder = bench.node.listen, Path(name)
        baseline = in_process("alone", listen, folder / "alone", max(given.messages // 10, 1))
        ours = in_process("together", listen, folder / "together", given.messages)
    report(
        benchmark="channels",
        **ours,
        **{f"baseline_{key}": value for key, value in baseline.items()},
        ratio=ours["kb_per_channel"] / baseline["kb_per_channel"],
    )


if __name__ == "__main__":
    main()
