"""Web pages that may call: by the name that they use, and by their own origin."""

from __future__ import annotations

from typing import Final

import pytest
from starlette.datastructures import Headers

from store.http.sites import Sites
from store.observe.http import ANY

ORIGIN: Final = "https://app.example"
OTHER: Final = "https://other.example"
OWN: Final = "http://127.0.0.1:7423"
HOSTS: Final = {
    "127.0.0.1": True,
    "10.1.2.3:80": True,
    "[::1]:7423": True,
    "[::1]": True,
    "LOCALHOST:1": True,
    "a.localhost.": True,
    "node.example:9": True,
    "rebound.example": False,
    "127.0.0.1.rebound.example:7423": False,
    "localhost.rebound.example": False,
    "[::1].rebound.example": False,
    "127.0.0.1:80@rebound.example": False,
    "": False,
}
SITES: Final = Sites([ORIGIN], ["node.example"])


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_node_answers_to_its_own_names_alone(method: str) -> None:
    for host, is_own in HOSTS.items():
        found = SITES.wrong(method, Headers({"host": host}))
        assert (found is None) == is_own, host
        assert is_own or (found is not None and found.status == 421)
        assert Sites(hosts=[ANY]).wrong(method, Headers({"host": host})) is None


def read(site: str, dest: str, origin: str = "") -> tuple[str, dict[str, str]]:
    """Return a GET as a browser sends it."""
    headers = {"sec-fetch-site": site, "sec-fetch-dest": dest}
    return "GET", headers | ({"origin": origin} if origin else {})


@pytest.mark.parametrize(
    ("sent", "is_allowed"),
    [
        (read("cross-site", "image"), False),
        (read("same-site", "empty", OTHER), False),
        (read("cross-site", "iframe"), False),
        (read("cross-site", "document"), True),
        (read("cross-site", "empty", ORIGIN), True),
        (read("same-origin", "image"), True),
        (read("none", "document"), True),
        (("GET", {"origin": OTHER}), True),
        (("OPTIONS", {"origin": OTHER}), True),
        (("POST", {}), True),
        (("POST", {"origin": OTHER}), False),
        (("POST", {"origin": "null"}), False),
        (("POST", {"origin": OWN, "sec-fetch-site": "cross-site"}), False),
        (("POST", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}), False),
        (("POST", {"origin": OTHER, "sec-fetch-site": "same-site"}), False),
        (("POST", {"origin": OTHER, "sec-fetch-site": "same-origin"}), True),
        (("POST", {"origin": ORIGIN, "sec-fetch-site": "cross-site"}), True),
        (("POST", {"origin": OWN}), True),
    ],
)
def test_other_sites_read_and_write_nothing(
    sent: tuple[str, dict[str, str]], is_allowed: bool
) -> None:
    method, headers = sent
    found = SITES.wrong(method, Headers({"host": "127.0.0.1:7423", **headers}))
    assert (found is None) == is_allowed
    assert is_allowed or (found is not None and found.status == 403)
    assert Sites([ANY]).wrong(method, Headers({"host": "127.0.0.1:7423", **headers})) is None
