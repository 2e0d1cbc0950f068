"""Nodes in this process that the tests share: one that is open, and one with a token file."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import pytest_asyncio

from store.domain.access import Access, parse_token_file
from tests.calls.transports import TRANSPORTS, Transport
from tests.integration.rpc.harness import TIMEOUT_S, Node, Rules, serve
from tests.support.credentials import token_file

CLIENTS: Final = {
    "reader": 'rights = ["read"]',
    "publisher": 'rights = ["publish"]',
    "follower": 'rights = ["follow"]',
    "operator": 'rights = ["admin"]',
    "backfiller": 'rights = ["publish", "backfill"]',
    "everything": 'rights = ["read", "publish", "follow"]',
    "app": 'rights = ["read", "publish", "follow"]\ncontent_topics = ["/app/"]',
    "slow": 'rights = ["read"]\nlimits = { bytes_per_second = 10 }',
    **{
        f"small-{kind.__name__}": 'rights = ["publish"]\nlimits = { request_bytes = 2_000,'
        " messages_per_second = 10, message_bytes = 300 }"
        for kind in TRANSPORTS
    },
}
"""Clients named like what they may do; the token of each begins with ``token-of-``."""

_numbers = itertools.count()


def access_of(**clients: str) -> Access:
    """Return the rules of a token file with these clients."""
    return parse_token_file(token_file(clients))


def caller(node: Node, kind: type[Transport], client: str | None = None) -> Transport:
    """Return a caller of a node, as a client with its token."""
    return kind(node.address, node.http, None if client is None else f"token-of-{client}")


async def check_all_is_given_back(node: Node) -> None:
    """Check that ended calls hold nothing of the budgets."""
    context = node.context
    budgets = context.answers, context.requests, context.followed
    async with asyncio.timeout(TIMEOUT_S):
        while context.answers.senders or context.drain.blocks or any(b.used for b in budgets):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_node(new_store: Callable[[], str]) -> AsyncIterator[Node]:
    """Serve without a token file."""
    async with serve(new_store(), http=True) as node:
        yield node
        await check_all_is_given_back(node)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded_node(new_store: Callable[[], str]) -> AsyncIterator[Node]:
    """Serve with a token file and a clock for rates that stands still."""
    rules = Rules(access_of(**CLIENTS), monotonic_ns=lambda: 0)
    async with serve(new_store(), rules=rules, http=True) as node:
        yield node
        await check_all_is_given_back(node)


@pytest.fixture(params=TRANSPORTS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Transport]:
    """Return a transport."""
    found: type[Transport] = request.param
    return found


@pytest.fixture
def topic() -> str:
    """Return a content topic that no other test uses."""
    return f"/app/1/topic-{next(_numbers)}/proto"
