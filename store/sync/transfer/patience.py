"""How long a transfer goes on with a peer that says little, or nothing.

Three limits, of which the first two count only time in which it is the peer's turn: no word for
`TransferLimits.silence_ns`; too little moved in `pace_ns`, so that a peer which lets messages
trickle does not keep a session for itself; and `total_ns` in all. What ends so was not in vain:
what is stored stays, and the next session finds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.sync.transfer.events import Fault
from store.sync.transfer.limits import TransferLimits
from store.sync.transfer.sending import PeerFault
from storenode.message.limits import NS_PER_S

_NOT_IN_VAIN: Final = "what was stored stays, and the next session goes on"


@dataclass(frozen=True, slots=True)
class Moved:
    """What has been moved so far: IDs that were settled, bytes of messages, and IDs yet open."""

    settled: int
    size_bytes: int
    open: int


class Patience:
    """The clockwork of one transfer; times are nanoseconds of a clock that nobody sets."""

    def __init__(self, limits: TransferLimits, now_ns: int, moved: Moved) -> None:
        self._limits = limits
        self._began_ns = self._now_ns = self._heard_ns = now_ns
        self._waited_ns, self._mark = 0, moved

    def pass_time(self, now_ns: int, *, waiting: bool) -> None:
        """It is ``now_ns``; ``waiting``: up to now it was for the peer to do something."""
        if waiting:
            self._waited_ns += now_ns - self._now_ns
        else:
            self._heard_ns = now_ns
        self._now_ns = now_ns

    def heard(self) -> None:
        """The peer has just said something that counts."""
        self._heard_ns = self._now_ns

    def check_time(self, moved: Moved) -> None:
        """Is there any time left?

        Raises:
            PeerFault: there is not.
        """
        limits = self._limits
        silent_ns = self._now_ns - self._heard_ns
        if silent_ns >= limits.silence_ns:
            raise PeerFault(
                Fault.SILENCE,
                f"the peer has said nothing for {silent_ns // NS_PER_S} s: {_NOT_IN_VAIN}; if it "
                "needs longer for an answer, see to its database, or give --peer-silence on both",
            )
        if self._now_ns - self._began_ns >= limits.total_ns:
            raise PeerFault(
                Fault.SLOW,
                f"the transfer was not done within {limits.total_ns // NS_PER_S} s: {_NOT_IN_VAIN}",
            )
        if self._waited_ns >= limits.pace_ns:
            self._demand_pace(moved)

    def _demand_pace(self, moved: Moved) -> None:
        limits, mark = self._limits, self._mark
        settled = moved.settled - mark.settled
        size_bytes = moved.size_bytes - mark.size_bytes
        if settled < min(limits.pace_ids, mark.open) and size_bytes < limits.pace_bytes:
            raise PeerFault(
                Fault.SLOW,
                f"the transfer moved {settled:,} messages and {size_bytes:,} bytes in "
                f"{limits.pace_ns // NS_PER_S} s, and {limits.pace_ids:,} or "
                f"{limits.pace_bytes:,} are due: {_NOT_IN_VAIN}",
            )
        self._waited_ns, self._mark = 0, moved
