"""Machines of gossip with one fault each, such as somebody might make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from store.gossip.config import GossipConfig
from store.gossip.events import (
    Committed,
    Confirm,
    Effect,
    Input,
    Inventory,
    Known,
    Persist,
    Received,
    Restored,
    Send,
    Waiting,
)
from store.gossip.machine import Gossip
from store.gossip.stores import Stores


class EagerGossip(Gossip):
    """Announces what it has received before it is durable."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        effects = super().step(now_ns, given)
        for effect in list(effects):
            if isinstance(effect, Persist):
                effects += super().step(now_ns, Committed(list(effect.batch.hashes)))
        return effects


class EchoingGossip(Gossip):
    """Passes the inventories of others on, as if it held the same."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        effects = super().step(now_ns, given)
        if isinstance(given, Received) and isinstance(given.frame, Inventory):
            effects += super().step(now_ns, Committed(given.frame.ids))
        return effects


class ForgetfulGossip(Gossip):
    """Does not restore what was unread when it ended."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        return [] if isinstance(given, Restored) else super().step(now_ns, given)


class LonelyGossip(Gossip):
    """Tells those who join nothing of what was before."""

    def _catch_up(self, peer: object) -> None:  # noqa: ARG002 - as overridden
        return


class ImpatientGossip(Gossip):
    """Takes silence for a lie."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        for source in self._core.wanted.sources.values():
            for round_ in source.rounds:
                if round_.talks_ns is None:
                    round_.talks_ns = round_.asked_ns - self._config.patience_ns
        return super().step(now_ns, given)

    def _blame(self, peer: str, undelivered: int) -> None:
        super()._blame(peer, 1_000 * undelivered)


class CredulousStores(Stores):
    """Counts a peer once in each of its names."""

    def _voice(self, peer: str, store_id: str) -> str:  # noqa: ARG002 - as overridden
        return store_id


class CredulousGossip(Gossip):
    """Lets a peer confirm in many names."""

    def __init__(self, config: GossipConfig) -> None:
        super().__init__(config)
        self._core.stores = CredulousStores(self._core._forget_store)


class CountingGossip(Gossip):
    """Counts announcements, not stores."""

    def __init__(self, config: GossipConfig) -> None:
        super().__init__(config)
        self._numbers_said = count()
        confirm = self._core.unread.confirm

        def count_all(digest: bytes, store_id: str) -> int:
            return confirm(digest, f"{store_id} {next(self._numbers_said)}")

        self._core.unread.confirm = count_all  # type: ignore[method-assign]


class GreedyGossip(Gossip):
    """Remembers whatever is announced."""

    def __init__(self, config: GossipConfig) -> None:
        super().__init__(config)
        self._core.wanted._announced_ids = 10**9

    def check(self) -> None:
        super().check()
        most = self._config.announced_ids
        assert all(len(each.announced) <= most for each in self._core.wanted.sources.values())


class PresumingGossip(Gossip):
    """Takes all that was looked up for held."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        if isinstance(given, Known):
            given = Known(given.token, [True] * len(given.held))
        return super().step(now_ns, given)


class OrphanGossip(Gossip):
    """Leaves events waiting whose parents have come."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        effects = super().step(now_ns, given)
        return [each for each in effects if not isinstance(each, Waiting) or each.missing]


class DeafGossip(Gossip):
    """Loses confirmations on their way to the database."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        effects = super().step(now_ns, given)
        return [each for each in effects if not isinstance(each, Confirm)]


class MuteGossip(Gossip):
    """Never announces anything."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        effects = super().step(now_ns, given)
        return [
            Send(each.peer, Inventory([]))
            if isinstance(each, Send) and isinstance(each.frame, Inventory)
            else each
            for each in effects
        ]


@dataclass(frozen=True)
class GossipMutant:
    """A fault, what a run says of it, and from which seed on to look."""

    make: Callable[[GossipConfig], Gossip]
    finding: str
    first_seed: int = 0


UNEQUAL = "do not become equal"

GOSSIP_MUTANTS = {
    "announces too early": GossipMutant(EagerGossip, "acknowledged .* does not hold it"),
    "passes inventories on": GossipMutant(EchoingGossip, "acknowledged .* does not hold it"),
    "forgets what was unread": GossipMutant(ForgetfulGossip, f"{UNEQUAL}: .* unread", 10),
    "tells those who join nothing": GossipMutant(LonelyGossip, UNEQUAL),
    "takes silence for a lie": GossipMutant(ImpatientGossip, "accuses an honest peer"),
    "counts a liar twice": GossipMutant(CredulousGossip, "has confirmed .* as liar-", 11),
    "counts announcements": GossipMutant(
        CountingGossip, "which is no store|tells of .* confirmations", 20
    ),
    "remembers everything": GossipMutant(GreedyGossip, "AssertionError", 28),
    "takes all for held": GossipMutant(PresumingGossip, "acknowledged .* does not hold it"),
    "leaves events waiting": GossipMutant(OrphanGossip, f"{UNEQUAL}: .* waiting"),
    "loses confirmations": GossipMutant(DeafGossip, f"{UNEQUAL}: .* unread"),
    "announces nothing": GossipMutant(MuteGossip, UNEQUAL),
}
