"""Histories as channels have them: drawn causal graphs with forks, merges and planted gaps.

A channel is spoken in by a few participants, more by day than by night. Whoever speaks usually has
seen everything and so joins all heads; sometimes not, and a message some steps back gets a second
child. Some messages that others refer to are left out: those are the gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storenode.message.hashing import message_hash
from storenode.sds.codec import encode

HOUR_NS: Final = 3_600_000_000_000
HOURS_PER_DAY: Final = 24
SHARDS: Final = 8
MOST_PARENTS: Final = 3
MOST_BACK: Final = 4
LATE_SHARE: Final = 0.12
"""Messages whose sender has not seen the newest ones."""

HINTED_SHARE: Final = 0.5
MESSAGES_PER_GAP: Final = 5_000
ID_BYTES: Final = 32
MEDIAN_CONTENT_BYTES: Final = 110
MOST_CONTENT_BYTES: Final = 4_000


@dataclass(frozen=True, slots=True)
class Spoken:
    """One message of a history."""

    timestamp: int
    pubsub_topic: str
    content_topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel: what was stored of it, and what is known of that.

    ``gaps`` are the IDs of messages that were left out, all of which some stored message names as
    a parent. ``incomplete`` messages have one of them in their past, however far back. ``forks``
    are stored messages with several stored children, ``merges`` those with several parents.
    """

    name: str
    messages: tuple[Spoken, ...]
    gaps: frozenset[str]
    incomplete: int
    forks: int
    merges: int


Parents = list[list[int]]


def channels(
    messages: int, count: int, days: int, until_ns: int, seed: int = 1
) -> Iterator[Channel]:
    """Channels that have about so many messages together, over some days up to a time."""
    dice = np.random.default_rng(seed)
    shares = dice.dirichlet(np.full(count, 4.0))
    for number, share in enumerate(shares):
        size = max(20, round(float(share) * messages))
        yield _channel(dice, number, size, _times(dice, size, days, until_ns))


def _channel(
    dice: np.random.Generator, number: int, size: int, times: NDArray[np.int64]
) -> Channel:
    parents = _drawn(dice, size)
    gaps = _planted(dice, parents)
    children = [0] * size
    for each, own in enumerate(parents):
        if each not in gaps:
            for parent in own:
                children[parent] += 1
    lamports, incomplete = [0] * size, [False] * size
    for each, own in enumerate(parents):
        lamports[each] = 1 + max((lamports[parent] for parent in own), default=0)
        incomplete[each] = any(parent in gaps or incomplete[parent] for parent in own)
    held = [each for each in range(size) if each not in gaps]
    ids = [dice.bytes(ID_BYTES).hex() for _ in range(size)]
    name = f"room-{number:02d}"
    return Channel(
        name,
        tuple(
            _said(
                dice,
                number,
                name,
                times=times,
                ids=ids,
                parents=parents,
                lamports=lamports,
                gaps=gaps,
            )
        ),
        frozenset(ids[each] for each in gaps),
        sum(incomplete[each] for each in held),
        sum(children[each] > 1 for each in held),
        sum(len(parents[each]) > 1 for each in held),
    )


def _times(dice: np.random.Generator, size: int, days: int, until_ns: int) -> NDArray[np.int64]:
    """Distinct times, ascending; four times as many at noon as at midnight."""
    by_hour = 2.5 - 1.5 * np.cos(np.arange(HOURS_PER_DAY) * 2 * np.pi / HOURS_PER_DAY)
    first = until_ns - days * HOURS_PER_DAY * HOUR_NS
    hours = dice.choice(HOURS_PER_DAY, size, p=by_hour / by_hour.sum())
    slots = dice.integers(0, days, size) * HOURS_PER_DAY + hours
    drawn = np.sort(first + slots * HOUR_NS + dice.integers(0, HOUR_NS, size))
    return np.maximum.accumulate(drawn - np.arange(size)) + np.arange(size)


def _drawn(dice: np.random.Generator, size: int) -> Parents:
    """The parents of every message, as places of earlier ones."""
    late = dice.random(size) < LATE_SHARE
    back = dice.integers(1, MOST_BACK + 1, size)
    heads: list[int] = []
    found: Parents = []
    for each in range(size):
        own = [max(0, each - 1 - int(back[each]))] if late[each] and each else heads[-MOST_PARENTS:]
        heads = [head for head in heads if head not in own] + [each]
        found.append(own)
    return found


def _planted(dice: np.random.Generator, parents: Parents) -> frozenset[int]:
    """Messages to leave out: each is the parent of one that stays, and none of another gap."""
    size = len(parents)
    children: list[list[int]] = [[] for _ in range(size)]
    for each, own in enumerate(parents):
        for parent in own:
            children[parent].append(each)
    gaps: set[int] = set()
    wanted = max(1, size // MESSAGES_PER_GAP)
    for drawn in dice.permutation(size).tolist():
        near = {*parents[drawn], *children[drawn]}
        if children[drawn] and not near & gaps:
            gaps.add(drawn)
        if len(gaps) == wanted:
            break
    return frozenset(gaps)


def _said(
    dice: np.random.Generator,
    number: int,
    channel: str,
    *,
    times: NDArray[np.int64],
    ids: list[str],
    parents: Parents,
    lamports: list[int],
    gaps: frozenset[int],
) -> Iterator[Spoken]:
    size = len(ids)
    pubsub, content = f"/waku/2/rs/1/{number % SHARDS}", f"/show/1/{channel}/proto"
    senders = dice.zipf(1.7, size) % 12
    lengths = dice.lognormal(np.log(MEDIAN_CONTENT_BYTES), 0.8, size).astype(np.int64)
    hinted = dice.random(size) < HINTED_SHARE
    hashes: list[bytes] = []
    for each in range(size):
        payload = encode(
            channel,
            ids[each],
            sender_id=f"participant-{senders[each]}",
            lamport=lamports[each],
            parents=[
                (ids[parent], hashes[parent] if hinted[each] else None) for parent in parents[each]
            ],
            content=dice.bytes(int(min(max(lengths[each], 1), MOST_CONTENT_BYTES))),
        )
        at = int(times[each])
        hashes.append(message_hash(pubsub, payload, content, None, at))
        if each not in gaps:
            yield Spoken(at, pubsub, content, payload)
