"""The judge's view of one participant."""

from __future__ import annotations

from collections import deque

from storenode.sds.codec import SdsMessage
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import UNATTENDED_SWEEPS
from storenode.sds.log import Key


class View:
    """The judge's view of one participant.

    Attributes:
        keys: the log as its application has it.
        shown: causes that it was shown and that are not in its log.
        lost: what was reported to it as lost.
        deceived: forged messages that are in its log; withdrawn: those that left it, and of which
            its application is not notified yet.
        replaced: IDs of all that left it, of which the genuine message may wait for its causes.
        lacking: what a filter of another lacked, and was not sent again.
        sent_ns: own unacknowledged messages -> when they were sent last.
        given_up: own messages that were never acknowledged.
        promised: what `Channel.send` has returned for; left: own messages that have left.
        shown_keys: the log as its application was shown it.
        handed: pages of a feed of which no cursor is written: cursor -> content.
        scanned: what a scan must bring before the gap is closed.
        searched: since when it searches for what peers show; such a scan closes no gap.
        filters: the newest message with a filter of each peer in this life.
        ready: own messages that are written down and have not left -> since when.
        listens: the last batch was taken and no other is under way; waits_ns: since when.
    """

    def __init__(self, name: str, config: ChannelConfig) -> None:
        self.name = name
        self.config = config
        self.keys: list[Key] = []
        self.ids: set[str] = set()
        self.shown: set[str] = set()
        self.lost: set[str] = set()
        self.deceived: set[str] = set()
        self.withdrawn: set[Key] = set()
        self.replaced: set[str] = set()
        self.own: dict[str, int] = {}
        self.sent_ns: dict[str, int] = {}
        self.given_up: set[str] = set()
        self.asked: dict[str, None] = {}
        self.lacking: set[str] = set()
        self.capped = ""
        self.highest = 0
        self.last_own = 0
        self.latest_ms = 0
        self.last_ms = 0
        self.attended_ms = 0
        self.ticks = 0
        self.ticked_ns = 0
        self.abandons = False
        self.promised: set[str] = set()
        self.left: set[str] = set()
        self.shown_keys: list[Key] = []
        self.handed: dict[bytes, list[tuple[int, str]]] = {}
        self.scanned: list[tuple[int, str]] = []
        self.scanned_after = 0
        self.searched: list[int] = []
        self.filters: dict[str, SdsMessage] = {}
        self.ready: dict[str, int] = {}
        self.listens = False
        self.waits_ns = 0
        self.tries: dict[str, deque[int]] = {}

    def clock_was_set(self, now_ns: int, now_ms: int) -> None:
        """Count times that were to come from now on."""
        self.latest_ms = max(self.latest_ms, now_ms)
        self.sent_ns = dict.fromkeys(self.sent_ns, now_ns)

    def attend(self, now_ms: int) -> None:
        """Note that the channel is served at this time of its clock."""
        leap_ms, self.last_ms = now_ms - self.last_ms, now_ms
        if leap_ms > UNATTENDED_SWEEPS * self.config.missing_every_ms:
            self.attended_ms = now_ms
        elif leap_ms < 0:
            self.attended_ms += leap_ms
