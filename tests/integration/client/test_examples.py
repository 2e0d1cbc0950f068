"""The examples in docstrings of public classes run as they stand, in the form of their class."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

import storenode
from storenode.client import Admin, AsyncAdmin
from storenode.sds.aio.channel import Channels
from storenode.sds.aio.reliable import ReliableChannel
from tests.support.node import NodeProcess

CLASSES: list[type] = [
    *(getattr(storenode, name) for name in storenode.__all__ if name[0] != "_"),
    *(Admin, AsyncAdmin, Channels, ReliableChannel),
]
BLOCKING: set[type] = {storenode.Client, storenode.Channel, Admin}
EXAMPLE = re.compile(r"( +)```python\n(.*?)\n\1```", re.DOTALL)
CONNECTED: dict[type, str] = {
    storenode.Client: 'with Client("127.0.0.1:7420") as client:',
    storenode.AsyncClient: 'async with AsyncClient("127.0.0.1:7420") as client:',
}
ENDLESS = ("in feed", ".messages()", "in events")
TIMEOUT_S = 60.0


def examples(text: str | None) -> list[str]:
    return [dedent(code) for _, code in EXAMPLE.findall(text or "")]


def run(code: str, names: dict[str, Any]) -> None:
    if "async " not in code and "await " not in code:
        exec(code, names)
        return
    exec(f"async def main():\n{indent(code, '    ')}", names)

    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await names["main"]()

    asyncio.run(limited())


@pytest.mark.parametrize("kind", CLASSES, ids=[kind.__name__ for kind in CLASSES])
def test_the_examples_of_a_class_and_of_its_methods_run(
    kind: type, node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = examples(kind.__doc__)
    assert own
    members = [getattr(kind, name) for name in vars(kind) if name[0] != "_"]
    calls = [code for each in members for code in examples(getattr(each, "__doc__", None))]
    assert not calls or kind in CONNECTED
    wait = "await " if kind not in BLOCKING else ""
    message = 'Message(b"hello", "/my-app/1/chat/proto")'
    for code in [*own, *calls]:
        assert kind not in BLOCKING or not re.search("async |await ", code)
        printed: list[tuple[object, ...]] = []

        def show(*values: object, code: str = code, printed: Any = printed) -> None:  # noqa: ANN401
            printed.append(values)
            if any(each in code for each in ENDLESS):
                raise EOFError  # it would go on for ever

        names: dict[str, Any] = {each.__name__: each for each in CLASSES}
        names |= {"datetime": datetime, "timedelta": timedelta, "UTC": UTC, "print": show}
        names |= {"readings": [b"1", b"2"], "picture": bytes(300_000)}
        whole = code
        if code in calls:
            body = f"result = {wait}client.publish({message})\n{code}"
            whole = f"{CONNECTED[kind]}\n{indent(body, '    ')}"
        for documented, address in (("7420", node.listen), ("7421", node.admin)):
            whole = whole.replace(f"127.0.0.1:{documented}", address)
        with suppress(EOFError):
            run(whole, names)
        assert bool(printed) == ("print(" in code)
