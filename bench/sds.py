"""Benchmark of one SDS channel: messages per processor second, cost by log length, bytes per entry.

The baseline is the published JavaScript channel on the same conversation, if Node is there: it is
installed from the npm registry into a temporary directory. Each of its cases runs in a process
of its own, on as many messages, with as many unacknowledged messages, the same filter, and
histories of two or of its default, 200. Ours looks for gaps and answers repair requests meanwhile;
the baseline has no such search. What waits is swept once, at the end. ``--messages`` is the length
of the longest conversation; shorter ones have a fifth and a twenty-fifth.
"""

from __future__ import annotations

import gc
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from bench.support import options, report
from storenode.sds.channel import MessageChannel
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Broadcast, Message, Packet
from storenode.sds.log import LogEntry

PEER: Final = Path(__file__).parent / "peers" / "sds_js"
START_MS: Final = 1_763_625_600_000
OUTSTANDING: Final = {"receive": 10, "shuffled": 10, "send": 1_000}
HISTORIES: Final = (2, 200)
SHORTER: Final = (25, 5, 1)
LENGTHS: Final = (1_000, 100_000, 1_000_000)
ROUNDS: Final = 5
ROUND_MESSAGES: Final = 1_000


def channel(sender: str, history: int = 2) -> MessageChannel:
    """Create a channel with a filter in every message; repair and gap detection are on."""
    config = ChannelConfig(
        "bench",
        sender,
        history_entries=history,
        max_outgoing=10**6,
        max_waiting=10**6,
        max_waiting_bytes=10**9,
        filter_every=1,
        name_heads=False,
    )
    return MessageChannel(config, START_MS, random.Random(sender))


def conversation(sender: MessageChannel, count: int, start_ms: int = START_MS) -> list[bytes]:
    """Return the messages of one participant: 100 bytes, each with history and filter."""
    packets = []
    for number in range(count):
        events = sender.send(start_ms + number, b"%100d" % number)
        packets += [event.payload for event in events if isinstance(event, Broadcast)]
        sender.outgoing.by_id.clear()
    return packets


def receiver(outstanding: int, history: int = 2) -> MessageChannel:
    """Create a channel with unacknowledged messages."""
    made = channel("receiver", history)
    for number in range(outstanding):
        made.send(START_MS, b"own %d" % number)
    return made


def seconds_to_take(into: MessageChannel, packets: list[bytes]) -> float:
    """Measure the delivery of packets one by one."""
    delivered = 0
    start = time.process_time()
    for packet in packets:
        for event in into.receive(START_MS, (Packet(packet),)):
            delivered += isinstance(event, Message)
    taken = time.process_time() - start
    assert delivered == len(packets), f"{delivered} of {len(packets)} were delivered"
    return taken


def seconds_to_send(into: MessageChannel, count: int) -> float:
    """Send messages, while all before them stay unacknowledged."""
    start = time.process_time()
    for number in range(count):
        into.send(START_MS + number, b"more %d" % number)
    return time.process_time() - start


def measure(case: str, packets: list[bytes], history: int) -> float:
    """Return the messages per second of our channel."""
    into = receiver(OUTSTANDING[case], history)
    if case == "send":
        return len(packets) / seconds_to_send(into, len(packets))
    return len(packets) / seconds_to_take(into, packets)


def arranged(case: str, packets: list[bytes]) -> list[bytes]:
    """Return the packets in the order of a case."""
    if case != "shuffled":
        return packets
    return random.Random(1).sample(packets, len(packets))


@contextmanager
def peer() -> Iterator[Path | None]:
    """Yield a directory with the JavaScript channel, or None without Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sds-js-") as name:
        directory = Path(name)
        for file in PEER.iterdir():
            shutil.copy(file, directory)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        done = subprocess.run(command, cwd=directory, check=False, capture_output=True)
        yield directory if done.returncode == 0 else None


def measure_peer(directory: Path, case: str, packets: list[bytes], history: int) -> float:
    """Return the messages per second of the JavaScript channel."""
    file = directory / f"{case}.bin"
    file.write_bytes(b"".join(len(packet).to_bytes(4) + packet for packet in packets))
    command = ["node", "measure.mjs", str(file), case, str(history)]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["count"] / found["seconds"])


def rates(count: int) -> None:
    """Report the cases at each length and history, with a ratio each if the baseline is there."""
    with peer() as directory:
        for history in HISTORIES:
            for messages in (max(count // part, 1) for part in SHORTER):
                packets = conversation(channel("sender", history), messages)
                for case in OUTSTANDING:
                    given = arranged(case, packets)
                    ours = measure(case, given, history)
                    figures: dict[str, object] = {"messages_per_s": ours, "messages": messages}
                    if directory is not None:
                        theirs = measure_peer(directory, case, given, history)
                        figures |= {"baseline_per_s": theirs, "ratio": ours / theirs}
                    report(benchmark=f"sds {case}", history=history, **figures)


def by_length() -> None:
    """Report the cost of a received message at each length of the log, and bytes per entry."""
    into = receiver(10)
    before = memory_bytes()
    rng = random.Random(2)
    shortest = 0.0
    for length in LENGTHS:
        for number in range(len(into.log), length):
            entry = LogEntry(number, rng.randbytes(32).hex(), "sender", rng.randbytes(32))
            into.log.insert(entry)
        used = (memory_bytes() - before) / length
        cost = cost_of_one(into)
        shortest = shortest or cost
        report(
            benchmark="sds log",
            entries=length,
            us_per_message=cost * 1e6,
            ratio=cost / shortest,
            **({"bytes_per_entry": used} if length == LENGTHS[-1] else {}),
        )


def cost_of_one(into: MessageChannel) -> float:
    """Return the median processor seconds per received message."""
    sender = channel(f"sender {len(into.log)}")
    costs = []
    for turn in range(ROUNDS):
        start_ms = into.clock.value + 1 + turn * ROUND_MESSAGES
        packets = conversation(sender, ROUND_MESSAGES, start_ms)
        taken = seconds_to_take(into, packets)
        costs.append(taken / ROUND_MESSAGES)
    return sorted(costs)[ROUNDS // 2]


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Run all."""
    given = options(__doc__, messages=2_500)
    # First, while no memory that other cases have left takes the log in.
    by_length()
    rates(given.messages)
