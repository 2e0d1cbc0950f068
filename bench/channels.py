"""Channels of one process at one node: memory, threads, descriptors, and what silence costs.

Each channel has a state file. ``--messages`` is the number of channels. The baseline, in a process
of its own, joins a tenth of them one by one, each with its own connection and thread; its figures
are per channel.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import psutil

from bench.pipeline.cpu import apart
from storenode.sds.aio.channel import Channel, Channels

SILENCE_S: Final = 5.0


def in_process(listen: str, folder: Path, count: int, *, shared: bool) -> dict[str, float]:
    """What so many channels cost this process, beyond what it had before."""
    folder.mkdir()
    return asyncio.run(_measured(listen, folder, count, shared=shared))


async def _measured(listen: str, folder: Path, count: int, *, shared: bool) -> dict[str, float]:
    process = psutil.Process()
    before_bytes, before_s = process.memory_info().rss, time.process_time()
    async with AsyncExitStack() as stack:
        many = await stack.enter_async_context(Channels.open(listen)) if shared else None
        channels = []
        for name in (f"room-{number}" for number in range(count)):
            if many is not None:
                channels.append(await many.join(name, "a", state=folder / name))
            else:
                joining = Channel.join(listen, name, "a", state=folder / name)
                channels.append(await stack.enter_async_context(joining))
        for channel in channels:
            await channel.wait_for(lambda status: status.synced)
        joined_s = time.process_time() - before_s
        for channel in channels:
            await channel.send(b"a line of chat")
        for channel in channels:
            await channel.wait_for(lambda status: not status.unpublished)
        silent_s = time.process_time()
        await asyncio.sleep(SILENCE_S)
        return {
            "channels": count,
            "process_mb": process.memory_info().rss / 1e6,
            "kb_per_channel": (process.memory_info().rss - before_bytes) / count / 1e3,
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "join_cpu_ms": joined_s / count * 1e3,
            "silent_cpu_percent": (time.process_time() - silent_s) / SILENCE_S * 100,
        }


def main() -> None:
    """Run both ways."""
    # The processes that are measured are without it.
    from bench.support import bench_node, options, report  # noqa: PLC0415

    count = options(__doc__, messages=1_000).messages
    with bench_node() as bench, tempfile.TemporaryDirectory(prefix="storenode-bench-") as name:
        listen, folder = bench.node.listen, Path(name)
        alone = apart(in_process, listen, folder / "alone", max(count // 10, 1), shared=False)
        ours = apart(in_process, listen, folder / "together", count, shared=True)
    report(
        benchmark="channels",
        **ours,
        **{f"baseline_{key}": value for key, value in alone.items()},
        ratio=ours["kb_per_channel"] / alone["kb_per_channel"],
    )


if __name__ == "__main__":
    main()
