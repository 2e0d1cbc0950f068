"""The scenario of a run of a group, drawn from its seed.

Small groups have few kinds of fault each, and much of those; large ones have the share of lost
messages that people ask about, a partition, late joiners and restarts.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Final

from sim.limits import NS_PER_MS, NS_PER_S
from sim.rng import Random, happens
from sim.scenario import HOUR_NS, MIN_NODES, Faults, GroupScenario, Scenario, drawn
from storenode.message.limits import MAX_PAGE_MESSAGES
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig

_SMALLEST_GROUP: Final = 3
SMALL_GROUP: Final = 10
LARGE_GROUP: Final = 200

FIXED_MESSAGES: Final = 10
FIXED_TALK_NS: Final = 180 * NS_PER_S
"""The conversation of `fixed_group`, during which there are faults."""

_CHANNEL: Final = "room"
_IN_STEP_NS: Final = 3 * NS_PER_S


def drawn_group(
    rng: Random, size: int | None = None, *, with_store: bool, restored: float = 0.0
) -> Scenario:
    """Draw a scenario for ``size`` participants, by default three, with store nodes or without.

    ``restored``: the share of their crashes after which they begin from a backup.
    """
    size = size or _SMALLEST_GROUP
    small = size <= SMALL_GROUP
    stores = rng.choice((1, 2)) if with_store else 0
    follow = rng.choice((False, True)) and stores > 0 and small
    talk_ns = (20 if small else 30 if size <= LARGE_GROUP else 60) * NS_PER_S
    most = 60 if small else 24 if size <= LARGE_GROUP else 8
    messages = rng.randint(10, most) if small else most
    faults = _small_faults(rng) if small else _large_faults(size)
    lost_after_ms = rng.choice((None, None, 3_000)) if small and stores else None
    if small and not stores:
        # What others could be answered with ends with the lives of those who have it.
        lost_after_ms = rng.choice((None, 6_000, 12_000))
        if lost_after_ms is None:
            faults = replace(
                faults, crash_every_ns=0, leave_every_ns=0, save_crashes=0.0, send_crashes=0.0
            )
    if restored:
        # What one has sent since may be nowhere, or at others alone: all repair, or give up.
        lost_after_ms = 3_000
        faults = replace(faults, crash_every_ns=4 * NS_PER_S, outage_every_ns=4 * NS_PER_S)
        faults = replace(faults, restored=restored, forged=0.0)
    if stores > 1 and follow:
        # What is ahead of the time is reconciled when its time has come, which may be too late.
        faults = replace(faults, skew_ns=min(faults.skew_ns, _IN_STEP_NS))
    in_step = faults.skew_ns <= _IN_STEP_NS
    pull_s = 0 if stores < 2 or not in_step else 3 if follow else rng.choice((0, 0, 3))
    joins_ns, burst = _joins(rng, size, talk_ns), rng.choice((1, 1, 3, 8))
    # What a store refuses may be given up before a clock is right, or others have heard it.
    drift_s = rng.choice((8, 600)) if follow and in_step else 10**6
    network_delay_ms = rng.choice((10, 50, 300) if small else (50,))
    disk_delay_ms = rng.choice((1, 20))
    repair = not stores or restored > 0 or happens(rng, 0.3)
    if stores and repair:
        # Without the others, who joins late would never get what the stores have lost.
        faults = replace(faults, commits_lost=0.5)
    config = _config(rng, size, messages, lost_after_ms, follow=follow, repair=repair)
    group = GroupScenario(
        follow=follow,
        joins_ns=joins_ns,
        messages=messages,
        burst=burst,
        talk_ns=talk_ns,
        config=config,
    )
    nodes = _nodes(rng, stores, group, pull_ns=pull_s * NS_PER_S)
    return replace(
        nodes,
        faults=faults,
        faults_ns=talk_ns * 3 // 2,
        network_delay_ns=network_delay_ms * NS_PER_MS,
        disk_delay_ns=disk_delay_ms * NS_PER_MS,
        drift_ns=drift_s * NS_PER_S,
        page_messages=3,
        sds_claimants=1,
        causal_messages=1,
    )


def _nodes(rng: Random, stores: int, group: GroupScenario, *, pull_ns: int) -> Scenario:
    """Return the scenario of a group beside store nodes, whose limits are drawn beside the run's.

    ``pull_ns``: how often one reconciles with another, 0: never.
    """
    everyone = range(stores)
    peers = [tuple(set(everyone) - {node}) if pull_ns else () for node in everyone]
    interval_ns = pull_ns or HOUR_NS
    return replace(
        drawn(copy(rng), MIN_NODES),
        stores=tuple(everyone),
        peers=tuple(peers),
        retention_ns=(None,) * stores,
        history=0,
        clients=0,
        small_nodes=frozenset(),
        plain_nodes=frozenset(),
        forged=False,
        ask_every_ns=0,
        sds_share=0.0,
        interval_ns=interval_ns,
        wide_ns=2 * interval_ns,
        group=group,
    )


def fixed_group(rng: Random, size: int | None = None) -> Scenario:
    """Return a scenario of the same conversation for any size beside two stores.

    Participants and stores have the options that ship. Of what participants broadcast to each
    other a fifth is lost; each crashes every two hours in the mean, and a tenth joins late.
    """
    size = size or _SMALLEST_GROUP
    joins_ns = tuple(
        int(rng.uniform(0, FIXED_TALK_NS)) if number % 10 == 9 else 0 for number in range(size)
    )
    faults = Faults(
        lost=0.2,
        twice=0.05,
        breaks=0.02,
        refused_saves=0.01,
        crash_every_ns=7_200 * NS_PER_S // size,
        skew_ns=3 * NS_PER_S,
    )
    group = GroupScenario(
        follow=False,
        joins_ns=joins_ns,
        messages=FIXED_MESSAGES,
        burst=1,
        talk_ns=FIXED_TALK_NS,
        config=ChannelConfig(_CHANNEL, "anybody"),
    )
    return replace(
        _nodes(rng, 2, group, pull_ns=3 * NS_PER_S),
        faults=faults,
        faults_ns=FIXED_TALK_NS,
        network_delay_ns=50 * NS_PER_MS,
        disk_delay_ns=20 * NS_PER_MS,
        drift_ns=600 * NS_PER_S,
        page_messages=MAX_PAGE_MESSAGES,
    )


def _joins(rng: Random, size: int, talk_ns: int) -> tuple[int, ...]:
    late = rng.choice((0.0, 0.1, 0.4))
    return tuple(
        int(rng.uniform(0, talk_ns)) if number and happens(rng, late) else 0
        for number in range(size)
    )


def _config(
    rng: Random,
    size: int,
    messages: int,
    lost_after_ms: int | None,
    *,
    follow: bool,
    repair: bool,
) -> ChannelConfig:
    """Draw options, whose times grow with the group so that it is not busy with itself."""
    unit = 1 if size <= SMALL_GROUP else 4 if size <= LARGE_GROUP else 16
    quiet = 1 if size <= LARGE_GROUP else 5
    groups = max(size // 20, 1)
    # A message that no history names shows in filters only: without a feed they must cover all,
    # and one that is wrong about it hides it for good.
    capacity = max(4, int(messages * rng.choice((0.5, 1.5, 4) if follow else (4, 6))))
    error_rate = rng.choice((0.05, 0.001)) if follow else 1e-6
    return ChannelConfig(
        _CHANNEL,
        "anybody",
        filter=FilterShape(capacity, error_rate),
        history_entries=rng.choice((1, 2, 2, 4)),
        filter_every=rng.choice((1, 3, 200)),
        filter_every_ms=20_000 * unit * quiet,
        gap_window=rng.choice((8, 128)) if follow else 128,
        resend_ms=3_000 * unit,
        resend_possible_ms=9_000 * unit,
        sync_min_ms=1_000 * unit * quiet,
        sync_max_ms=3_000 * unit * quiet,
        sync_owed_ms=4_000 * unit * quiet,
        sync_at_least_ms=10_000 * unit * quiet,
        behind_after_ms=1_000 * unit,
        missing_every_ms=1_000 * unit,
        lost_after_ms=lost_after_ms,
        max_waiting=rng.choice((10_000, 6)) if lost_after_ms else 10_000,
        repair=RepairConfig(500 * unit, 2_000 * unit, groups=groups) if repair else None,
    )


def _small_faults(rng: Random) -> Faults:
    def share(*some: float) -> float:
        return rng.choice((0.0, *some))

    def every(*seconds: int) -> int:
        return rng.choice((0, *seconds)) * NS_PER_S

    return Faults(
        lost=share(0.2, 0.2, 0.5),
        twice=share(0.1, 0.5),
        breaks=share(0.02, 0.1),
        refused_saves=share(0.0, 0.1, 0.5),
        doubtful_saves=share(0.0, 0.1),
        save_crashes=share(0.0, 0.01, 0.03),
        send_crashes=share(0.0, 0.01, 0.03),
        commit_crashes=share(0.0, 0.1),
        crash_every_ns=every(0, 4, 8),
        leave_every_ns=every(0, 10),
        disk_every_ns=every(0, 10),
        outage_every_ns=every(0, 10),
        partition_every_ns=every(5, 10),
        jump_every_ns=every(0, 0, 5),
        skew_ns=rng.choice((0, 0, 3, 120, 7_200)) * NS_PER_S,
        forged=share(0.0, 0.3, 1.0),
    )


def _large_faults(size: int) -> Faults:
    return Faults(
        lost=0.2,
        twice=0.05,
        breaks=0.02,
        refused_saves=0.01,
        send_crashes=0.001,
        crash_every_ns=(3 if size <= LARGE_GROUP else 2) * NS_PER_S,
        partition_every_ns=20 * NS_PER_S,
        skew_ns=3 * NS_PER_S,
        forged=0.1,
    )
