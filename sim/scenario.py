"""The scenario of a run, drawn from its seed: no two have the same faults in the same share.

A run that has a little of every fault has few of the rare coincidences. So each draw leaves most
kinds of fault out, and has more of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from reconcile.algorithm.plan import Tuning
from reconcile.limits import CodecLimits, SessionLimits, SummaryLimits
from sim.limits import NS_PER_MS, NS_PER_S
from sim.rng import Random, happens
from store.gossip.limits import GossipLimits
from store.sync.limits import ONLINE_INTERVAL_S, IndexLimits, TransferLimits
from storenode.message.limits import MAX_CAUSAL_MESSAGES, MAX_SDS_CLAIMANTS
from storenode.sds.config import ChannelConfig

MINUTE_NS: Final = 60 * NS_PER_S
HOUR_NS: Final = 60 * MINUTE_NS
DAY_NS: Final = 24 * HOUR_NS

MIN_NODES: Final = 2
MAX_NODES: Final = 6
_GOSSIP_HISTORY: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of a run. Shares are of all cases; ``..._every_ns`` is a mean distance, 0: never.

    ``commits_lost``: share of outages after which the newest commits are lost.
    ``lies``: of answers to lookups, those that are wrong. ``broken_scans``: of their pages, those
    after which a scan breaks. ``skew_ns``: how far a clock may be off.

    Of calls, ``breaks`` is the share of frames at which they break; ends of those that broke learn
    of it late (``unnoticed``), callees never (``silent``); frames take seconds (``stalls``).
    ``lost`` and ``twice``: of letters and answers. Of a database, ``commit_crashes`` are commits
    after which the writer is gone before it learns of them, ``busy`` writes that are refused for
    now, ``fails`` other work that fails, ``pauses`` work that takes seconds. ``gentle``: of
    crashes of nodes, those that are a shutdown.

    Of the transactions of a participant of a group, ``refused_saves`` fail, ``doubtful_saves`` are
    written and fail, and it crashes before ``save_crashes`` are written, and after
    ``send_crashes``. After ``restored`` of its crashes it has the state of its life before.
    ``forged``: of messages, under whose ID something else is published.
    """

    breaks: float = 0.0
    lost: float = 0.0
    twice: float = 0.0
    unnoticed: float = 0.0
    commit_crashes: float = 0.0
    busy: float = 0.0
    fails: float = 0.0
    commits_lost: float = 0.0
    lies: float = 0.0
    broken_scans: float = 0.0
    crash_every_ns: int = 0
    partition_every_ns: int = 0
    outage_every_ns: int = 0
    jump_every_ns: int = 0
    index_lost_every_ns: int = 0
    leave_every_ns: int = 0
    disk_every_ns: int = 0
    skew_ns: int = 0
    drift_ppm: int = 0
    refused_saves: float = 0.0
    doubtful_saves: float = 0.0
    save_crashes: float = 0.0
    send_crashes: float = 0.0
    restored: float = 0.0
    forged: float = 0.0
    stalls: float = 0.0
    silent: float = 0.0
    pauses: float = 0.0
    gentle: float = 0.0


class Trick(StrEnum):
    """A fault that a lying peer repeats.

    CLAIM: it announces everything that others announce. INVENT: it announces IDs that were never
    published, without end. REPEAT: it sends the same bodies over and over.
    ASK: it asks for everything over and over. HOARD: it sends frames that are too large. GARBAGE:
    it sends what is no frame. DEAF: it reads nothing.
    """

    CLAIM = "claim"
    INVENT = "invent"
    REPEAT = "repeat"
    ASK = "ask"
    HOARD = "hoard"
    GARBAGE = "garbage"
    DEAF = "deaf"


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipScenario:
    """The gossip of a run.

    ``beside``: nodes reconcile too. ``min_confirms``: what publishers ask for, one of them each
    time. ``strange``: the share of SDS messages with a parent that no store holds. ``retold``: of
    commits, those that are reported again. ``tricks``: of peers that lie, which have ``victims``.
    """

    beside: bool
    limits: GossipLimits
    max_confirms: int
    min_confirms: tuple[int, ...]
    strange: float = 0.0
    retold: float = 0.0
    tricks: tuple[Trick, ...] = ()
    victims: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScenario:
    """The participants of a run, all of one channel.

    ``follow``: they follow a node, else they receive each other's broadcasts. ``joins_ns[i]``: when
    participant i joins first. ``messages`` are said over ``talk_ns``, in bursts of up to ``burst``.
    ``config`` is of all, but for their names.
    """

    follow: bool
    joins_ns: tuple[int, ...]
    messages: int
    burst: int
    talk_ns: int
    config: ChannelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of a run; durations in nanoseconds.

    ``stores[i]`` is the store of node i, and ``peers[i]`` are the nodes that it calls.
    ``retention_ns[i]`` is how long store i keeps messages, None for ever. ``moments``: how many
    different timestamps the history has, of ``history`` messages over ``history_ns``; each is in
    a store with the probability ``share``. ``ask_every_ns``: how often an operator has some node
    reconcile, 0: never. ``sds_share``: of all messages, those of SDS, some of which are looked up
    every ``seek_every_ns``. ``own_bytes``: of its own commits, that a node keeps in memory.
    ``online_every_s``: how often a node notes that it is on. ``plain_nodes`` have no sums.
    ``forged``: stores differ in sets that have one XOR.
    ``drift_ns``: how far from a node's time a message's may be. ``gossip``: None: nodes do not
    gossip. ``group``: None: there are no participants. ``twins``: messages share their hashes.
    """

    stores: tuple[int, ...]
    peers: tuple[tuple[int, ...], ...]
    retention_ns: tuple[int | None, ...]
    partition_ns: int
    history: int
    history_ns: int
    moments: int
    share: float
    clients: int
    publish_every_ns: int
    ask_every_ns: int
    sds_share: float
    seek_every_ns: int
    message_bytes: int
    large_share: float
    small_nodes: frozenset[int]
    plain_nodes: frozenset[int]
    forged: bool
    faults_ns: int
    interval_ns: int
    range_ns: int | None
    offset_ns: int
    wide_ns: int
    sessions: int
    online_every_s: float
    silence_ns: int
    network_delay_ns: int
    disk_delay_ns: int
    lengths_ns: tuple[int, ...]
    index: IndexLimits
    own_bytes: int
    limits: SessionLimits
    tuning: Tuning
    transfer: TransferLimits
    summary: SummaryLimits
    faults: Faults
    drift_ns: int = 20 * NS_PER_S
    page_messages: int = 2
    sds_claimants: int = MAX_SDS_CLAIMANTS
    causal_messages: int = MAX_CAUSAL_MESSAGES
    gossip: GossipScenario | None = None
    group: GroupScenario | None = None
    twins: bool = False

    @property
    def reconciles(self) -> bool:
        """True if nodes reconcile, beside gossip or without it."""
        return self.gossip is None or self.gossip.beside

    @property
    def all_summed(self) -> bool:
        """True if all that is stored is compared by sums that cannot be forged."""
        return not self.plain_nodes

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.stores)


def drawn(rng: Random, nodes: int | None = None) -> Scenario:
    """Draw a scenario, with ``nodes`` nodes if given."""
    count = nodes or rng.choice((2, 2, 3, 3, 3, 4, 4, 5, MAX_NODES))
    stores = _stores(rng, count)
    history_ns = rng.choice((MINUTE_NS, 20 * MINUTE_NS, 5 * HOUR_NS, 3 * DAY_NS))
    history = rng.choice((0, 10, 40, 100, 200))
    interval_ns = rng.randint(6, 25) * NS_PER_S
    codec = _limits(rng, CodecLimits)
    limits = SessionLimits(payload=codec, max_differences=rng.choice((5, 20, 80, 1_000)))
    moments = max(1, history // rng.choice((1, 1, 2, 10, 1000)))
    # Differences that policy refuses come back in every session. The differences that they hide are
    # found in parts of the window, unless too many are in one moment.
    room = limits.max_differences >= (20 if moments > history // 3 else 1_000)
    picky = room and happens(rng, 0.3)
    silence_ns = rng.choice((5, 10, 20)) * NS_PER_S
    forged = happens(rng, 0.2)
    # So that sums of the index show them, and in the other runs those of the database.
    in_memory = forged and happens(rng, 0.6)
    return Scenario(
        stores=stores,
        peers=_peers(rng, stores),
        retention_ns=tuple(_retention(rng, history_ns) for _ in range(max(stores) + 1)),
        partition_ns=rng.choice((2 * NS_PER_S, MINUTE_NS, history_ns // 16)),
        history=history,
        history_ns=history_ns,
        moments=moments,
        # Beside other differences the sessions would show the forged ones, too.
        share=1.0 if forged else rng.choice((0.5, 0.8, 0.95)),
        clients=rng.randint(1, 3),
        publish_every_ns=rng.choice((1, 2, 5, 20)) * NS_PER_S,
        ask_every_ns=rng.choice((0, 0, 20 * NS_PER_S)),
        sds_share=rng.choice((0.0, 0.2, 0.8)),
        seek_every_ns=rng.choice((2, 10)) * NS_PER_S,
        message_bytes=rng.choice((10, 40, 200)),
        large_share=rng.choice((0.0, 0.1, 0.3)),
        small_nodes=frozenset(_some_nodes(rng, count) if picky else ()),
        plain_nodes=frozenset(_some_nodes(rng, count) if happens(rng, 0.3) else ()),
        forged=forged,
        faults_ns=rng.randint(15, 50) * NS_PER_S,
        interval_ns=interval_ns,
        range_ns=rng.choice((None, 30 * NS_PER_S, 10 * MINUTE_NS, HOUR_NS)),
        offset_ns=rng.choice((0, NS_PER_S, 5 * NS_PER_S)),
        wide_ns=2 * interval_ns,
        sessions=rng.randint(1, 4),
        online_every_s=ONLINE_INTERVAL_S,
        silence_ns=silence_ns,
        network_delay_ns=rng.choice((1, 10, 60)) * NS_PER_MS,
        disk_delay_ns=rng.choice((1, 5, 30)) * NS_PER_MS,
        lengths_ns=rng.choice(
            ((DAY_NS, HOUR_NS, MINUTE_NS), (HOUR_NS, MINUTE_NS, NS_PER_S), (MINUTE_NS, NS_PER_S))
        ),
        index=_limits(
            rng,
            IndexLimits,
            entries=rng.choice((1_000,) if in_memory else (8, 40, 1_000)),
            chunk_ids=16,
        ),
        own_bytes=rng.choice((0, 3_000, 1_000_000)),
        limits=limits,
        tuning=Tuning() if happens(rng, 0.3) else _limits(rng, Tuning),
        transfer=_limits(rng, TransferLimits, unsolicited_messages=10, silence_ns=silence_ns),
        summary=SummaryLimits() if happens(rng, 0.5) else _limits(rng, SummaryLimits),
        faults=_faults(rng),
    )


def draw_with_gossip(rng: Random, nodes: int | None = None, *, beside: bool) -> Scenario:
    """Draw a scenario in which nodes gossip; ``beside``: they reconcile too.

    Every message is for every store, but for retention where nodes reconcile too.
    """
    base = drawn(rng, nodes)
    tricks = _tricks(rng)
    base = replace(
        base,
        retention_ns=base.retention_ns if beside else (None,) * len(base.retention_ns),
        history=min(base.history, _GOSSIP_HISTORY) if beside else 0,
        large_share=0.0,
        sds_share=rng.choice((0.0, 0.5, 1.0)),
        small_nodes=frozenset(),
        publish_every_ns=rng.choice((1, 1, 2, 5)) * NS_PER_S,
        faults=_gossip_faults(rng, base.faults),
    )
    if not beside:
        base = replace(base, ask_every_ns=0, offset_ns=0, faults=_repairable(base.faults))
    gossip = _gossip(rng, base.stores, tricks, beside=beside)
    faults = replace(
        base.faults,
        stalls=rng.choice((0.0, 0.0, 0.02)),
        silent=base.faults.unnoticed / 2,
        pauses=rng.choice((0.0, 0.0, 0.02)),
        # A shutdown takes longer than the pause between two of them where sessions must end.
        gentle=0.0 if beside else rng.choice((0.0, 0.5, 1.0)),
    )
    return replace(base, gossip=gossip, faults=faults)


def _gossip_faults(rng: Random, faults: Faults) -> Faults:
    """Draw faults in which publishers are answered and the store fails often: streams last."""
    outages_ns = rng.choice((0, 0, 6, 15)) * NS_PER_S
    busy = rng.choice((0.0, 0.0, 0.05, 0.2))
    return replace(faults, lost=0.0, twice=0.0, busy=busy, outage_every_ns=outages_ns)


def _repairable(faults: Faults) -> Faults:
    """Return the faults that gossip alone can repair: it announces a message only once."""
    return replace(faults, jump_every_ns=0, index_lost_every_ns=0, skew_ns=0, commits_lost=0.0)


def _stores(rng: Random, nodes: int) -> tuple[int, ...]:
    """Draw mostly a store per node; sometimes two nodes share one, if two stores are left."""
    stores = list(range(nodes))
    if nodes > MIN_NODES and happens(rng, 0.25):
        stores[-1] = rng.randint(0, nodes - 2)
    return tuple(stores)


def _peers(rng: Random, stores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Draw which nodes each node calls; the stores are connected by any node of each."""
    nodes = len(stores)
    everyone = [tuple(other for other in range(nodes) if other != node) for node in range(nodes)]
    if nodes == MIN_NODES or len(set(stores)) < nodes:
        return tuple(everyone)
    shape = rng.choice(("mesh", "ring", "line", "star"))
    if shape == "ring":
        return tuple(((node + 1) % nodes,) for node in range(nodes))
    if shape == "line":
        return tuple((node + 1,) if node + 1 < nodes else () for node in range(nodes))
    if shape == "star":
        return tuple((0,) if node else () for node in range(nodes))
    return tuple(everyone)


def _retention(rng: Random, history_ns: int) -> int | None:
    if not happens(rng, 0.35):
        return None
    return 3 * MINUTE_NS + int(history_ns * rng.uniform(0.0, 0.8))


def _some_nodes(rng: Random, nodes: int) -> list[int]:
    return rng.sample(range(nodes), rng.randint(1, nodes - 1))


_CHOICES: Final[Mapping[type, Mapping[str, Sequence[Any]]]] = {
    CodecLimits: {
        "max_payload_bytes": (8_192, 16_384),
        "max_ranges": (64, 128, 1_000),
        "max_elements": (16, 64, 1_000),
    },
    Tuning: {
        "first_parts": (2, 4, 16),
        "last_fingerprints": (1, 3, 5, 9),
        "min_parts": (1, 4, 16),
        "largest_late_set": (2, 8, 64),
        "gauges": (0, 2, 8),
    },
    TransferLimits: {
        "frame_messages": (1, 3, 20),
        "frame_bytes": (200, 1_000, 20_000),
        "frame_answers": (1, 4, 50),
        "unsent_bytes": (300, 2_000, 50_000),
        "unstored_bytes": (200, 2_000, 50_000),
        "load_ids": (2, 8, 100),
        "find_ids": (2, 8, 100),
    },
    IndexLimits: {
        "waiting_commits": (8, 64),
        "ids_at_once": (1, 8, 100),
        "inline_ids": (0, 2, 1_000),
        "warm_up_ids": (2, 16, 1_000),
        "settle_s": (5.0, 60.0),
    },
    SummaryLimits: {
        "kept_ids": (1, 16, 1_000),
        "ids_at_once": (8, 32, 1_000),
        "kept_buckets": (1, 16, 1_000),
        "parents_at_once": (1, 4, 100),
        "spans_at_once": (4, 32, 1_000),
        "parts_at_once": (4, 32, 1_000),
        "probes": (1, 8, 1_000),
    },
    GossipLimits: {
        "unread_interval_ns": (NS_PER_S, 5 * NS_PER_S, 10 * NS_PER_S),
        "pushed_ids": (0, 2, 2_048),
        "frame_ids": (1, 7, 64),
        "frame_bytes": (200, 2_000, 100_000),
        "round_ids": (1, 5, 64),
        "unstored_bytes": (300, 2_000, 1_000_000),
        "leaf_ids": (1, 3, 64),
        "cut_off_ns": (10 * NS_PER_S, 60 * NS_PER_S),
    },
}
"""Values of limits: small ones, by which a few hundred messages are a large set, and large ones."""

_T = TypeVar("_T")


def _limits(rng: Random, kind: type[_T], **fixed: object) -> _T:
    return kind(**{name: rng.choice(each) for name, each in _CHOICES[kind].items()}, **fixed)


def _faults(rng: Random) -> Faults:
    def share(*most: float) -> float:
        return rng.choice((0.0, *most))

    def every(*seconds: int) -> int:
        return rng.choice((0, *seconds)) * NS_PER_S

    return Faults(
        breaks=share(0.0, 0.01, 0.05, 0.15),
        lost=share(0.05, 0.3),
        twice=share(0.05, 0.3),
        unnoticed=share(0.5, 1.0),
        commit_crashes=share(0.0, 0.02, 0.1),
        busy=share(0.0, 0.0, 0.05),
        fails=share(0.0, 0.0, 0.03),
        commits_lost=share(0.8, 1.0),
        lies=share(0.3),
        broken_scans=0.2,
        crash_every_ns=every(0, 8, 20),
        partition_every_ns=every(0, 10, 25),
        outage_every_ns=every(0, 0, 15),
        jump_every_ns=every(0, 0, 10),
        index_lost_every_ns=every(0, 0, 10),
        skew_ns=rng.choice((0, 2 * NS_PER_S, MINUTE_NS, 2 * MINUTE_NS)),
        drift_ppm=rng.choice((0, 200)),
    )


def _tricks(rng: Random) -> list[Trick]:
    """Draw what liars do, if there are any."""
    return rng.sample(list(Trick), rng.choice((1, 1, 2))) if happens(rng, 0.5) else []


def _gossip(
    rng: Random, stores: Sequence[int], tricks: Sequence[Trick], *, beside: bool
) -> GossipScenario:
    """Draw the gossip among nodes with these stores."""
    honest = len(set(stores))
    return GossipScenario(
        beside=beside,
        max_confirms=rng.choice((0, 0, 1, 2)),
        limits=_limits(
            rng,
            GossipLimits,
            announced_ids=1_024,
            asked_ids=256,
            queued_ids=4_096,
            catch_up_ids=4_096,
        ),
        min_confirms=rng.choice(((0,), (0, 0, 1), (0, 1, honest - 1), (honest,))),
        strange=rng.choice((0.0, 0.05)),
        retold=rng.choice((0.0, 0.2)),
        tricks=tuple(tricks),
        victims=rng.randint(1, len(stores)),
    )
