"""The client that is generated from the schemas, in a page of another origin, at a real node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.browser import Page, Quiet, served, until
from tests.integration.clients.languages import TYPESCRIPT
from tests.support.credentials import write_tokens
from tests.support.node import NodeProcess, running_node

pytestmark = pytest.mark.timeout(900)  # the first test builds the client

PACKAGES: Final = ("@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-web")
RIGHTS: Final = {"page": ["read", "follow", "publish"], "reader": ["read"]}
STORED: Final = 1
ASK: Final = """
const [question, done] = arguments;
window.ask(question).then(done);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the origin of a page that imports the built client as it is, without a bundler."""
    folder = TYPESCRIPT.built(tmp_path_factory)
    shutil.copy(Path(__file__).with_name("store.mjs"), folder)
    imports = json.dumps(
        {"imports": dict(each for name in PACKAGES for each in mapped(folder, name))}
    )
    (folder / "index.html").write_text(
        f'<!doctype html><title>Client</title><link rel="icon" href="data:,">'
        f'<script type="importmap">{imports}</script>'
        '<script type="module" src="/store.mjs"></script>'
    )
    with served(partial(Quiet, directory=str(folder))) as origin:
        yield origin


def mapped(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield where the modules of an installed package are."""
    text = (folder / "node_modules" / name / "package.json").read_text(encoding="utf-8")
    for path, ways in json.loads(text)["exports"].items():
        module = ways["import"] if isinstance(ways, dict) else ways
        module = module["default"] if isinstance(module, dict) else module
        yield name + path[1:], f"/node_modules/{name}{module[1:]}"


@pytest.fixture(scope="module")
def node(
    site: str, tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Yield a node that demands tokens, and lets the page call."""
    folder = tmp_path_factory.mktemp("store")
    write_tokens(folder, RIGHTS)
    options = (
        *("--http-listen", "127.0.0.1:0", "--http-allow-origin", site),
        *("--client-token-file", str(folder / "clients.toml")),
    )
    with running_node(folder / "node", *options, database_url=new_store()) as process:
        yield process


@pytest.fixture
def client(page: Page, site: str, node: NodeProcess) -> Callable[..., dict[str, Any]]:
    """Return a function that calls the node from the page."""
    page.driver.get(site)
    until(page, lambda: page.run("return window.ask !== undefined"), "the client is loaded")

    def ask(what: str, token: str = "page", **more: object) -> dict[str, Any]:
        given = token and f"token-of-{token}"
        question = {"what": what, "token": given, **more}
        question["api"] = f"http://{node.http}"
        return dict(page.driver.execute_async_script(ASK, question))

    return ask


def test_a_page_publishes_reads_and_follows(
    client: Callable[..., dict[str, Any]], page: Page
) -> None:
    topic, said = "/page/1/connect/proto", ["one", "größer 明", "three"]
    assert client("publish", topic=topic, said=said) == {"answer": [STORED] * 3}
    assert client("query", topic=topic) == {"answer": said}
    assert client("scan", topic=topic) == {"answer": [said[:2], said[2:]]}
    assert client("follow", topic=topic, last="live") == {"answer": [*said, "live"]}
    assert page.complaints() == []


def test_a_page_gets_the_reason_of_a_failed_call(client: Callable[..., dict[str, Any]]) -> None:
    for asked, code, sentence in (
        (("query", ""), "Unauthenticated", "carries no token"),
        (("query", "forged"), "Unauthenticated", "is not known"),
        (("publish", "reader"), "PermissionDenied", "lacks the right `publish`"),
        (("wrongCursor", "reader"), "PermissionDenied", "lacks the right `follow`"),
        (("wrongCursor", "page"), "InvalidArgument", "the cursor is not one of Follow"),
    ):
        failed = client(asked[0], asked[1], topic="/page/1/x/proto", said=["x"])
        assert (failed["code"], sentence in failed["sentence"]) == (code, True), failed
        assert failed["id"], "the request ID is shown"
