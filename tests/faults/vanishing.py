"""A client that opens one streaming call, says so, and goes no further; run as a script.

Arguments: HOST:PORT, the method, and for the SDS calls the channel and the message IDs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Final

from storenode.client.messages import new_message, new_request
from storenode.client.node import NodeClient, connect
from storenode.client.types import PublishRequest
from tests.support.acknowledged import PUBSUB, TOPICS


async def endless() -> AsyncIterator[PublishRequest]:
    """One request, and then nothing for ever."""
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


async def main(node: str, method: str, channel: str, ids: Sequence[str]) -> None:
    """Open the call, take its first answer, and stop reading."""
    async with connect(node) as client:
        answers = METHODS[method](client, channel, ids)
        await anext(answers)
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
