"""Gossip between machines: certificates on both sides, and only for those who are allowed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests.integration.run.helpers import get, log_lines
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.secured import Pki

CONNECTED = 'storenode_gossip_peers{state="connected"} 1.0'


def events(node: NodeProcess, name: str) -> list[dict[str, Any]]:
    return [line for line in log_lines(node.log()) if line["event"] == name]


def test_only_an_allowed_peer_has_a_stream(tmp_path: Path, new_database: Callable[[], str]) -> None:
    pki = Pki(tmp_path)

    own = ("--sync-interval", "0", "--log-format", "json")

    with ExitStack() as stack:

        def node(name: str, *more: str) -> NodeProcess:
            url = new_database()
            # Databases that are copied from one template would be one store.
            with psycopg.connect(url) as connection:
                connection.execute("update storenode.store set store_id = gen_random_uuid()")
            return stack.enter_context(
                running_node(tmp_path / name, *pki.peer(name, *own, *more), database_url=url)
            )

        first = node("a.example", "--allow-peer", "b.example")
        friend = node("b.example", "--peer", f"a.example@{first.peer}")
        stranger = node("c.example", "--peer", f"a.example@{first.peer}")

        for each in (first, friend):
            assert eventually(lambda each=each: CONNECTED in get(each.metrics, "/metrics")[1])  # type: ignore[misc]
        (joined,) = events(first, "gossip_peer_joined")
        assert (joined["peer"], joined["dialled_by"]) == ("b.example", "b.example")
        refused = eventually(lambda: events(stranger, "gossip_dial_failed"))
        assert "node c.example may not call this node" in refused[0]["error"]
