"""The order of servers, by timelines and commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from store.db.primary import DatabaseServer, hosts_of, is_newer, label, refusal, seen_on, with_hosts

SERVER = DatabaseServer("a:1", b"s" * 16, 7_000, 2, "100.5", (40, 9))
SEEN = seen_on(SERVER)


@pytest.mark.parametrize(
    ("system", "timeline", "holds", "refused"),
    [
        (7_000, 1, True, "a:1 is on timeline 1, and this node has seen timeline 2"),
        (7_000, 1, False, "a:1 is on timeline 1, and this node has seen timeline 2"),
        (7_000, 2, True, None),
        (7_000, 2, False, "a:1 lacks commit 40"),
        # A promotion that lost commits: which, the feed says.
        (7_000, 3, False, None),
        # Another cluster, or one that does not say: only commits tell.
        (8_000, 1, True, None),
        (8_000, 9, False, "a:1 lacks commit 40"),
        (0, 0, True, None),
        (0, 0, False, "a:1 lacks commit 40"),
    ],
)
def test_a_server_is_judged_by_what_was_seen(
    system: int, timeline: int, *, holds: bool, refused: str | None
) -> None:
    found = refusal(replace(SERVER, system=system, timeline=timeline), SEEN, holds=holds)
    assert (found or "").startswith(refused or "")
    assert (found is None) == (refused is None)


def test_another_store_is_refused_whatever_its_timeline() -> None:
    other = replace(SERVER, store_id=b"t" * 16, timeline=9)
    assert "holds another store" in (refusal(other, SEEN, holds=True) or "")
    assert not is_newer(other, SERVER, holds_its_head=True, is_in_it=False)


@pytest.mark.parametrize(
    ("timeline", "holds", "stored", "newer"),
    [
        (3, False, False, True),
        (1, True, False, False),
        (2, True, False, True),
        (2, False, True, False),
        (2, True, True, False),
        (2, False, False, False),
        (0, True, False, True),
        (0, False, False, False),
    ],
)
def test_the_higher_timeline_is_newer_and_then_who_holds_more(
    timeline: int, *, holds: bool, stored: bool, newer: bool
) -> None:
    one = replace(SERVER, timeline=timeline)
    assert is_newer(one, SERVER, holds_its_head=holds, is_in_it=stored) == newer


@pytest.mark.parametrize(
    ("url", "labels"),
    [
        ("postgresql://u@a:1,b:2/d", ["a:1", "b:2"]),
        ("postgresql://u@a,b:2/d", ["a", "b:2"]),
        ("host=a,b port=3 dbname=d", ["a:3", "b:3"]),
        ("host=a,b hostaddr=::1,127.0.0.1 dbname=d", ["a", "b"]),
        ("hostaddr=127.0.0.1 dbname=d", ["127.0.0.1"]),
        ("dbname=d", ["the default host"]),
    ],
)
def test_hosts_are_taken_apart_and_put_together_in_another_order(
    url: str, labels: list[str]
) -> None:
    hosts = hosts_of(url)
    assert [label(each) for each in hosts] == labels
    assert [label(each) for each in hosts_of(with_hosts(url, hosts[::-1]))] == labels[::-1]
    assert [label(each) for each in hosts_of(with_hosts(url, hosts[:1]))] == labels[:1]
