"""About how many participants speak in a channel, and whether its response groups fit that.

Of the hashes of sender IDs the smallest are kept: up to `MAX_COUNTED` senders are counted, more
are estimated from how close these hashes are, within a tenth. Sender IDs are claims: a
participant that invents some makes the estimate too high, and the warning comes for nothing.

Source: SDS-R, "SDS-R global state": one response group for every 128 participants.
"""

from __future__ import annotations

from bisect import bisect_left

from storenode.sds.config import RepairConfig, response_groups
from storenode.sds.events import GroupsUnfit
from storenode.sds.limits import CENSUS_MS, MAX_COUNTED
from storenode.sds.repair import number_of

_HASHES = 2**64
_MOST_PER_GROUP = 256
_FEWEST_PER_GROUP = 32


class Census:
    """The senders heard within a day to two.

    Too many participants for the groups are told as soon as they are heard, too few at the end of
    a day. Both limits are twice as far as the groups that are recommended ever come, and what was
    told is told again only when there are twice or half as many: it does not flap.
    """

    __slots__ = ("_before", "_groups", "_heard", "_own", "_since_ms", "_told")

    def __init__(self, config: RepairConfig, own_id: str, now_ms: int) -> None:
        self._groups = config.groups
        self._own = number_of(own_id)
        self._before: list[int] = []
        self._heard = [self._own]
        self._since_ms = now_ms
        self._told: int | None = None

    def heard(self, sender_id: str, now_ms: int) -> GroupsUnfit | None:
        """Somebody spoke; what there is to tell."""
        if now_ms - self._since_ms >= CENSUS_MS:
            self._before, self._heard, self._since_ms = self._heard, [self._own], now_ms
            self._add(number_of(sender_id))
            return self._judge(_estimate(self._before), whole_day=True)
        if not sender_id or not self._add(number_of(sender_id)):
            return None
        return self._judge(_estimate(sorted({*self._before, *self._heard})), whole_day=False)

    def _add(self, number: int) -> bool:
        """False when it changes nothing."""
        heard = self._heard
        at = bisect_left(heard, number)
        if at == MAX_COUNTED or (at < len(heard) and heard[at] == number):
            return False
        heard.insert(at, number)
        del heard[MAX_COUNTED:]
        return True

    def _judge(self, participants: int, *, whole_day: bool) -> GroupsUnfit | None:
        groups, told = self._groups, self._told
        too_many = participants >= _MOST_PER_GROUP * groups
        too_few = whole_day and groups > 1 and participants < _FEWEST_PER_GROUP * groups
        if not (too_many or too_few):
            return None
        if told is not None and told < 2 * participants and participants < 2 * told:
            return None
        self._told = participants
        return GroupsUnfit(groups, participants, response_groups(participants))


def _estimate(smallest: list[int]) -> int:
    """Of how many numbers these are the smallest."""
    if len(smallest) < MAX_COUNTED:
        return len(smallest)
    return (MAX_COUNTED - 1) * _HASHES // max(smallest[MAX_COUNTED - 1], 1)
