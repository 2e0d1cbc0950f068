"""The node with messages and the gateway in front of it that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storenode.client.blocking_client import Client
from storenode.client.message import Message
from tests.integration.gateway.messages import NETWORK, made
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.javascript import HAS_NPM, WAKU, installed
from tests.support.node import NodeProcess, running_node

collect_ignore = [] if HAS_NPM else ["test_javascript.py"]


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder where the clients of other projects are installed."""
    return installed(tmp_path_factory, WAKU)


@pytest.fixture(scope="session")
def messages() -> list[Message]:
    """Return the messages of the node."""
    return made()


@pytest.fixture(scope="session")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str], messages: list[Message]
) -> Iterator[NodeProcess]:
    """Run a node with a store of its own."""
    directory = tmp_path_factory.mktemp("gateway")
    options = ("--max-clock-drift", "off")
    with running_node(directory / "node", *options, database_url=new_store()) as process:
        with Client([process.listen]) as client:
            client.publish_many(messages)
        yield process


@pytest.fixture(scope="session")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, node: NodeProcess
) -> Iterator[GatewayProcess]:
    """Run a gateway whose limits let one address do much."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), node.listen, *NETWORK) as process:
        yield process
