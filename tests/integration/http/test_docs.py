"""Every command of docs/http.md prints what the page shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.integration.http.api import Api
from tests.integration.http.conftest import HTTP
from tests.support.node import running_node
from tests.support.pages import ROOT, as_shown, steps

PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def test_the_page_is_as_it_tells(tmp_path: Path, new_store: Callable[[], str]) -> None:
    todo = steps(PAGE)
    assert len(todo) > 9
    with running_node(tmp_path / "node", *HTTP, database_url=new_store()) as node:
        as_shown(todo, {"API": f"http://{node.http}"})


def test_the_viewer_of_the_description_needs_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for path in ("/docs.js", "/page.css", "/page.svg", "/openapi.json"):
        assert path in page.text
        assert api.client.get(path).status_code == 200
