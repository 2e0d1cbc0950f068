"""An SDS participant as a program, which reports on its standard output what it does.

Each line is a JSON object. The first one has the IDs of its own messages in its log. It then sends
a message every so often until a line ``stop`` comes on its standard input; ``state`` and ``log``
are answered, and the end of the input ends it. It reports a message before it sends it, and again
when it is saved; and what it publishes before it does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from chaos.checker.history import Published
from chaos.link import Traffic
from chaos.participant import Participant, digest_of
from chaos.tasks import Tasks
from storenode.sds.aio.events import ChannelEvent, NotStored
from storenode.sds.aio.node import StoreNode
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig


def report(**fields: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _report_published(rows: Sequence[tuple[bytes, Published]]) -> None:
    report(published=[(key.hex(), row.fingerprint.hex(), row.timestamp_ns) for key, row in rows])


def _report_acknowledged(node: str, digests: Collection[bytes]) -> None:
    report(acknowledged=sorted(digest.hex() for digest in digests), node=node)


def _report_event(event: ChannelEvent) -> None:
    if isinstance(event, NotStored):
        report(refused=event.reason)


async def _send(who: Participant, pace_s: float, first: int, stop: asyncio.Event) -> None:
    rng = Random(f"{who.name}-{first}")
    number = first
    while not stop.is_set():
        number += 1
        content, message_id = f"{number} {rng.random()}".encode(), f"{who.name}-{number}"
        # Others may have it before `send` returns.
        report(sending=message_id, content=digest_of(content))
        await who.send(content, message_id)
        report(saved=message_id)
        try:
            await asyncio.wait_for(stop.wait(), rng.uniform(0.5, 1.5) * pace_s)
        except TimeoutError:
            continue


async def _obey(who: Participant, sending: asyncio.Task[None], stop: asyncio.Event) -> None:
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "stop":
            stop.set()
            await sending
            report(stopped=True)
        elif line == "state":
            status = who.look()
            report(
                length=who.length,
                synced=status.synced,
                unpublished=status.unpublished,
                lost=sorted(who.lost),
                status=f"{status}; {status.trouble}",
            )
        else:
            log = await who.read_log()
            report(log=[list(asdict(entry).values()) for entry in log.entries])


async def run(given: argparse.Namespace) -> None:
    """Join, and send until the end of the input."""
    config = ChannelConfig(
        given.channel,
        given.name,
        # Small filters, and resends that outlast every fault.
        filter=FilterShape(500, 0.01),
        resend_ms=5_000,
        resend_possible_ms=15_000,
        max_sends=1_000,
        sync_min_ms=5_000,
        sync_max_ms=10_000,
        repair=RepairConfig(2_000, 8_000),
    )
    nodes = [StoreNode(address) for address in given.nodes.split(",")]
    traffic = Traffic(_report_published, _report_acknowledged)
    who, tasks, stop = Participant(config, nodes, given.state, traffic), Tasks(), asyncio.Event()
    who.on_event = _report_event
    await who.join(tasks)
    report(joined=given.name, own=[each.message_id async for each in who.messages() if each.own])
    sending = tasks.start(_send(who, given.pace, given.first, stop))
    obeying = tasks.start(_obey(who, sending, stop))
    await asyncio.wait((obeying, tasks.failure), return_when=asyncio.FIRST_COMPLETED)
    if not obeying.done():
        tasks.failure.result()
    await tasks.stop()
    await who.leave()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--nodes", "--channel", "--name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True, help="seconds between two messages")
    parser.add_argument("--first", type=int, required=True, help="messages sent in earlier lives")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
