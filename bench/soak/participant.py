"""An SDS participant as a program of its own, which tells on its standard output what it does.

It tells which messages of its own its log has when it begins, then says something every so often
until a line ``stop`` comes on its standard input; a line ``state`` is answered by how it is; a path
is where it then writes its log. The end of the input ends it. It tells what it says before it does,
and again when that is saved. Before it publishes anything it tells the hash and the fingerprint.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.soak.checker.hashing import fingerprint, message_hash
from store.demo.link_wrapper import PassingLink
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Message, NotStored
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.transport import Outbound, PublishResult, Route
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Lost
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

_PAGE = 1_000


def tell(**what: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Telling:
    """A store node, all that is published at which is told first."""

    inner: StoreNode

    @property
    def name(self) -> str:
        """Its address."""
        return self.inner.name

    def open(self, route: Route) -> TellingLink:
        """A link of it."""
        return TellingLink(self.inner.open(route), route)


@dataclass(frozen=True, slots=True)
class TellingLink(PassingLink):
    """A link of it."""

    route: Route

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[PublishResult], None]:
        """Tell what leaves, and what a node says that it holds: not what it has passed on only."""
        passing: set[str] = set()

        async def told() -> AsyncIterator[Sequence[Outbound]]:
            async for batch in batches:
                named = [self._named(each) for each in batch]
                passing.update(
                    digest
                    for (digest, _, _), each in zip(named, batch, strict=True)
                    if each.ephemeral
                )
                tell(publishes=named)
                yield batch

        async with aclosing(self.inner.publish(told())) as answers:
            async for verdicts in answers:
                held = {each.hint.hex() for each in verdicts if each.stored}
                tell(held=sorted(held - passing), node=self.name)
                yield verdicts

    def _named(self, each: Outbound) -> tuple[str, str, int]:
        message = WakuMessage(
            payload=each.payload,
            content_topic=self.route.content_topic,
            timestamp=each.timestamp_ns,
            ephemeral=each.ephemeral or None,
        )
        topic = self.route.pubsub_topic
        return (
            message_hash(message, topic).hex(),
            fingerprint(message, topic).hex(),
            each.timestamp_ns,
        )


@dataclass
class Talker:
    """Says things, listens, and answers what it is asked."""

    channel: Channel
    name: str
    pace_s: float
    said: int
    """Messages that it has said in this life and those before."""

    length: int = 0

    async def run(self) -> None:
        """Until the input ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            listening = [tasks.create_task(self._listen()), tasks.create_task(self._count())]
            saying = tasks.create_task(self._say(stop))
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                if line == "stop":
                    stop.set()
                    await saying
                    tell(stopped=True)
                elif line == "state":
                    self._tell_state()
                else:
                    await self._write_log(Path(line))
                    tell(written=line)
            for task in (*listening, saying):
                task.cancel()

    async def _say(self, stop: asyncio.Event) -> None:
        dice = Random(f"{self.name}-{self.said}")
        while not stop.is_set():
            self.said += 1
            content = f"{self.name} says {self.said} {dice.random()}".encode()
            # Told before it is sent: others may have it before `send` returns.
            said = f"{self.name}-{self.said}"
            tell(says=said, content=hashlib.sha256(content).hexdigest())
            await self.channel.send(content, said)
            tell(saved=said)
            try:
                await asyncio.wait_for(stop.wait(), dice.uniform(0.5, 1.5) * self.pace_s)
            except TimeoutError:
                continue

    async def _listen(self) -> None:
        async for event in self.channel.events():
            if isinstance(event, Lost):
                tell(lost=list(event.message_ids))
            elif isinstance(event, NotStored):
                tell(not_stored=event.message_id, reason=event.reason)

    async def _count(self) -> None:
        async for _ in self.channel.messages():
            self.length += 1

    def _tell_state(self) -> None:
        status = self.channel.status
        tell(
            length=self.length,
            synced=status.synced,
            unpublished=status.unpublished,
            status=f"{status}; {status.trouble}",
        )

    async def _write_log(self, path: Path) -> None:
        rows = [
            (
                message.lamport,
                message.message_id,
                message.sender_id,
                hashlib.sha256(message.content).hexdigest(),
            )
            for message in await log_of(self.channel)
        ]
        await asyncio.to_thread(path.write_text, json.dumps(rows))


async def log_of(channel: Channel) -> list[Message]:
    """The whole log, in order."""
    pages, before = [], None
    while page := await channel.log(_PAGE, before=before):
        pages.append(page)
        before = page[0].key
    return [message for page in reversed(pages) for message in page]


def config_of(channel_id: str, sender_id: str) -> ChannelConfig:
    """Small filters, and resends that outlast every fault."""
    return ChannelConfig(
        channel_id,
        sender_id,
        filter=FilterShape(500, 0.01),
        resend_ms=5_000,
        resend_possible_ms=15_000,
        max_sends=1_000,
        sync_min_ms=5_000,
        sync_max_ms=10_000,
        repair=RepairConfig(2_000, 8_000),
    )


async def run(given: argparse.Namespace) -> None:
    """Join, and talk."""
    places = [Telling(StoreNode(address)) for address in given.nodes.split(",")]
    async with Channel.join(
        places,
        given.channel,
        given.name,
        state=given.state,
        config=config_of(given.channel, given.name),
    ) as channel:
        tell(joined=given.name, own=[each.message_id for each in await log_of(channel) if each.own])
        await Talker(channel, given.name, given.pace, given.first).run()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--nodes", "--channel", "--name", "--state"):
        parser.add_argument(name, required=True)
    parser.add_argument("--pace", type=float, required=True, help="seconds between two messages")
    parser.add_argument("--first", type=int, required=True, help="messages said in earlier lives")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
