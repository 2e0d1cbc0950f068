"""One node that grows to a hundred million messages: what everything costs at each size.

``python -m bench scale DIRECTORY`` fills a node in a directory that is named beforehand, and says
at every size of ``--steps`` what it took. It can be ended and begun again: it goes on behind what
the node has acknowledged. Messages are realistic: 90 days of them, 200 topics, most with some
hundred bytes; every fourth is an SDS message of one of 20 channels, with the two before it in its
channel as parents. All are published, with fsync on.

A line has the rate of the last messages published, pages of 100 at the start, in the middle and at
the end, by topic and of any topic, one after the other, 50 hashes, one SDS ID and a causal history
of 1,000 at random places (p50 and p99, and the processor time of node and Postgres), the start of
the node after a clean stop and after a kill, its memory, and the disk that a message takes. At the
end, or at the size that is reached with ``--upkeep-only``, comes a line of `bench.scale_upkeep`,
which needs as much disk again. A hundred million take some hours and 160 GB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from bench.data import PUBSUB_TOPIC, Row
from bench.disk import read
from bench.scale_upkeep import upkeep
from bench.support import Bench, bench_node_on, own_options, publish, report, seconds, settle, used
from storenode.client import Client
from storenode.message.hashing import message_hash
from storenode.sds.codec import encode

_DAYS: Final = 90
_DAY_NS: Final = 86_400 * 10**9
_TOTAL: Final = 100_000_000
_STEPS: Final = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 50_000_000, _TOTAL)
_LEAST: Final = 200_000
"""With fewer, no channel has a history of 1,000 in its second half."""

_PORTION: Final = 50_000
_MEASURED: Final = 200_000
"""Of the last messages before a step their rate is taken."""

_TOPICS: Final = 200
_CHANNELS: Final = 20
_SDS_EVERY: Final = 4
_MEDIAN_BYTES: Final = 180
_SPREAD: Final = 0.9
_MOST_BYTES: Final = 8_000
_ASKED: Final = 200
_HISTORIES: Final = 20
_FORWARD: Final[dict[str, Any]] = {"newest_first": False, "limit": 100}
_OPTIONS: Final = ("--max-clock-drift", "off", "--retention", "off")


@dataclass(frozen=True, slots=True)
class Messages:
    """Every message by its number, the same in each run."""

    start_ns: int
    total: int
    random: bytes = field(repr=False, default=np.random.default_rng(3).bytes(1 << 20))

    def timestamp(self, number: int) -> int:
        """At equal distances over 90 days, once all are there."""
        return self.start_ns + number * (_DAYS * _DAY_NS // self.total)

    def rows(self, first: int, end: int) -> list[Row]:
        """Some of them, in order."""
        dice = np.random.default_rng(first)
        sizes = np.exp(dice.normal(np.log(_MEDIAN_BYTES), _SPREAD, end - first))
        sizes = np.clip(sizes, 20, _MOST_BYTES).astype(int)
        return [
            self.row(number, int(size))
            for number, size in zip(range(first, end), sizes, strict=True)
        ]

    def row(self, number: int, size: int) -> Row:
        """One, with a payload or content of so many bytes."""
        at = number * 7_919 % (len(self.random) - _MOST_BYTES)
        content = number.to_bytes(8, "big") + self.random[at : at + size]
        if number % _SDS_EVERY:
            return Row(self.timestamp(number), topic(number), content)
        before = [number - steps * _SDS_EVERY * _CHANNELS for steps in (1, 2)]
        payload = encode(
            channel_of(number),
            sds_id(number),
            sender_id=f"participant-{number % 50}",
            lamport=number + 1,
            parents=[(sds_id(each), None) for each in before if each >= 0],
            content=content,
        )
        return Row(self.timestamp(number), topic(number), payload)


def topic(number: int) -> str:
    """The content topic of a message."""
    return f"/scale/1/topic-{number * 31 % _TOPICS:03d}/proto"


def channel_of(number: int) -> str:
    """The channel of an SDS message."""
    return f"channel-{number // _SDS_EVERY % _CHANNELS}"


def sds_id(number: int) -> str:
    """The SDS ID of a message."""
    return hashlib.sha256(number.to_bytes(8, "big")).hexdigest()


@dataclass(slots=True)
class Progress:
    """What is known of a directory from one run to the next."""

    path: Path
    start_ns: int
    total: int
    published: int = 0
    measured: int = 0

    @classmethod
    def of(cls, directory: Path, total: int) -> Progress:
        """Of a directory that may be new, and then is to hold so many."""
        path = directory / "progress.json"
        if path.exists():
            return cls(path, **json.loads(path.read_text()))
        return cls(path, time.time_ns() - (_DAYS + 1) * _DAY_NS, total)

    def keep(self) -> None:
        """Write it down."""
        names = ("start_ns", "total", "published", "measured")
        known = {name: getattr(self, name) for name in names}
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps(known))
        whole.replace(self.path)


def grow(bench: Bench, messages: Messages, progress: Progress, step: int) -> dict[str, float]:
    """Publish up to a size; the rate of the last `_MEASURED`, without making them, and its cost."""
    taken, counted = 0.0, 0
    before = used(bench)
    while progress.published < step:
        end = min(step, progress.published + _PORTION)
        rows = messages.rows(progress.published, end)
        lasted = seconds(lambda rows=rows: publish(bench, rows))  # type: ignore[misc]
        if end > step - _MEASURED:
            taken, counted = taken + lasted, counted + len(rows)
        else:
            before = used(bench)
        progress.published = end
        progress.keep()
    if not taken:
        return {}
    spent = used(bench).since(before, counted)
    return {
        "published_per_s": counted / taken,
        "publish_cpu_us": spent["node_cpu_us"] + spent["postgres_cpu_us"],
    }


def times(
    bench: Bench, name: str, work: Callable[[], object], count: int = _ASKED
) -> dict[str, float]:
    """Milliseconds of a call: p50, p99, and processor time of the node and Postgres."""
    before = used(bench)
    taken = [1e3 * seconds(work) for _ in range(count)]
    spent = used(bench).since(before, count)
    p50, p99 = np.percentile(taken, (50, 99))
    cpu = (spent["node_cpu_us"] + spent["postgres_cpu_us"]) / 1e3
    return {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99), f"{name}_cpu_ms": cpu}


def reads(bench: Bench, messages: Messages, size: int) -> Iterator[dict[str, float]]:
    """What reading costs."""
    dice = np.random.default_rng(size)

    def anywhere(low: float = 0.0, high: float = 1.0) -> int:
        return int(size * dice.uniform(low, high))

    def sds_number() -> int:
        return anywhere(0.5) // _SDS_EVERY * _SDS_EVERY

    with Client(bench.node.listen) as client:

        def page(low: float, high: float) -> None:
            number = anywhere(low, high)
            start_ns = messages.timestamp(number)
            client.query(topic(number), pubsub_topic=PUBSUB_TOPIC, start=start_ns, **_FORWARD)

        def pages(share: float) -> Callable[[], None]:
            """Each call reads the next one."""
            cursor: bytes | None = None

            def read_next() -> None:
                nonlocal cursor
                start_ns = messages.timestamp(int(size * share)) if cursor is None else None
                cursor = client.query(start=start_ns, cursor=cursor, **_FORWARD).cursor

            return read_next

        def hashes() -> None:
            digests = {known[at] for at in dice.integers(0, len(known), 50)}
            assert client.get(digests).keys() == digests, "a message is not found"

        def by_id() -> None:
            number = sds_number()
            assert client.get_sds(channel_of(number), [sds_id(number)]).messages

        def history() -> None:
            number = sds_number()
            found = client.causal_history(channel_of(number), [sds_id(number)], max_messages=1_000)
            assert len(found.messages) == 1_000, "the history is shorter"

        for place, share in {"start": 0.0, "middle": 0.5, "end": 0.98}.items():
            yield times(bench, f"page_{place}", partial(page, share, share + 0.01))
            yield times(bench, f"next_page_{place}", pages(share))
        firsts = [anywhere() // _PORTION * _PORTION for _ in range(4)]
        known = [
            message_hash(PUBSUB_TOPIC, row.payload, row.content_topic, None, row.timestamp)
            for first in firsts
            for row in messages.rows(first, min(first + _PORTION, size))[:: _PORTION // 2_000]
        ]
        yield times(bench, "hashes", hashes)
        yield times(bench, "sds_id", by_id)
        yield times(bench, "history", history, _HISTORIES)


def starts(bench: Bench) -> dict[str, float]:
    """Seconds until the node is ready again, after a clean stop and after a kill."""
    bench.node.terminate()
    clean = seconds(bench.node.start)
    bench.node.kill()
    return {"start_s": clean, "start_after_kill_s": seconds(bench.node.start)}


def measure(
    directory: Path, progress: Progress, grown: dict[str, float], messages: Messages
) -> None:
    """Report on the present size."""
    size = progress.published
    with bench_node_on(directory / "node", *_OPTIONS) as bench:
        settle(bench)
        figures = {
            name: value for each in reads(bench, messages, size) for name, value in each.items()
        }
        memory = psutil.Process(bench.node.process.pid).memory_info().rss
        sizes = read(bench.url)
        figures |= starts(bench)
    report(
        messages=size,
        **grown,
        **figures,
        node_mib=memory / 2**20,
        disk_bytes_per_message=sizes.total_bytes / size,
    )


def main(arguments: list[str]) -> int:
    """Grow, and measure at every step."""
    parser = own_options("scale", __doc__)
    parser.add_argument("directory", type=Path, help="where the node is, or is to be")
    parser.add_argument("--messages", type=int, default=_TOTAL, help="default: %(default)s")
    parser.add_argument("--steps", type=int, nargs="*", default=_STEPS, help="default: %(default)s")
    parser.add_argument("--upkeep-only", action="store_true", help="grow no further")
    given = parser.parse_args(arguments)
    if not all(_LEAST <= each <= _TOTAL for each in (given.messages, *given.steps)):
        parser.error(f"choose sizes from {_LEAST} to {_TOTAL}")
    if odd := [each for each in (given.messages, *given.steps) if each % _PORTION]:
        parser.error(f"{odd[0]} messages are no whole number of portions of {_PORTION}")
    given.directory.mkdir(parents=True, exist_ok=True)
    progress = Progress.of(given.directory, given.messages)
    messages = Messages(progress.start_ns, progress.total)
    if given.messages != progress.total:
        parser.error(f"{given.directory} was begun with --messages {progress.total}")
    if not given.upkeep_only:
        grow_and_measure(given, progress, messages)
    upkeep(given.directory, _OPTIONS, progress.start_ns, messages.timestamp(progress.published))
    return 0


def grow_and_measure(given: argparse.Namespace, progress: Progress, messages: Messages) -> None:
    """Grow to each step that is not measured yet."""
    for step in sorted({min(each, given.messages) for each in (*given.steps, given.messages)}):
        if step <= progress.measured:
            continue
        with bench_node_on(given.directory / "node", *_OPTIONS) as bench:
            grown = grow(bench, messages, progress, step)
        measure(given.directory, progress, grown, messages)
        progress.measured = step
        progress.keep()
