"""Commits as the feed reports them: their place in the commit order and what they span."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from store.domain.hub import Place


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One row of ``storenode.commits``; ``topics`` None: too many to be listed."""

    place: Place
    batch: int
    messages: int
    min_ts: int
    max_ts: int
    topics: tuple[bytes, ...] | None


def at_most(commits: Iterable[CommitRow], messages: int) -> list[CommitRow]:
    """The first commits with at most so many messages in all, but the first whatever it has."""
    chosen: list[CommitRow] = []
    for commit in commits:
        messages -= commit.messages
        if chosen and messages < 0:
            break
        chosen.append(commit)
    return chosen
