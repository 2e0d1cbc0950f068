"""A client that opens a streaming call over each of some connections, prints that, and waits.

Run as a script. Arguments: HOST:PORT, the method, how many connections, and for the SDS calls the
channel and the message IDs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from storenode.client.messages import new_message, new_request
from storenode.client.node import NodeClient, connect
from storenode.client.types import PublishRequest
from tests.support.acknowledged import PUBSUB, TOPICS


async def endless() -> AsyncIterator[PublishRequest]:
    """Yield one request, and wait for ever."""
    yield new_request([new_message(b"vanishing", TOPICS[0], PUBSUB, time.time_ns())])
    await asyncio.Event().wait()


Opener = Callable[[NodeClient, str, Sequence[str]], AsyncGenerator[Any, None]]

METHODS: Final[dict[str, Opener]] = {
    "PublishStream": lambda client, _channel, _ids: client.publish_stream(endless()),
    "Scan": lambda client, _channel, _ids: client.scan(),
    "Follow": lambda client, _channel, _ids: client.follow(from_beginning=True),
    "GetSdsMessages": lambda client, channel, ids: client.get_sds(
        channel, [(each, None) for each in ids]
    ),
    "GetCausalHistory": lambda client, channel, ids: client.causal_history(
        channel, [(ids[-1], None)]
    ),
}


async def main(node: str, method: str, streams: int, channel: str, ids: Sequence[str]) -> None:
    """Open the calls, take the first answer of each, and stop reading."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(streams):
            client = await stack.enter_async_context(connect(node))
            opened.append(METHODS[method](client, channel, ids))
            await anext(opened[-1])
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
