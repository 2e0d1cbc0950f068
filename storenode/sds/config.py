"""The configuration of a channel. All times are in milliseconds."""

from dataclasses import dataclass, field
from typing import Final

from storenode.common.errors import ArgumentError
from storenode.sds.bloom import FilterShape
from storenode.sds.codec import check_id
from storenode.sds.limits import (
    MAX_GAP_IDS,
    MAX_HISTORY_ENTRIES,
    MAX_REPAIR_ENTRIES,
    MAX_SDS_MESSAGE_BYTES,
)

_AT_LEAST_ONE: Final = (
    *("history_entries", "possible_acks", "max_sends", "filter_every", "filter_every_ms"),
    *("max_waiting", "max_waiting_bytes", "max_missing", "max_missing_of_sender", "max_outgoing"),
)

DEFAULT_CHANNEL_ID: Final = "0"
"""The channel of a group that has only one (SDS, "Messages")."""


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """SDS-Repair: participants ask each other for what they miss, and answer each other.

    Requests wait from ``request_min_ms`` to ``request_max_ms`` and are repeated in that rhythm
    until the message came or was given up; answers wait up to ``request_max_ms``. Of ``groups``
    response groups, only the sender's answers: one group for each 128 participants that are
    expected, the same number for all. The last ``kept_messages`` messages, of at most
    ``kept_bytes``, are answered from memory, others when the application recalls them (`Recall`).
    """

    request_min_ms: int = 30_000
    request_max_ms: int = 120_000
    groups: int = 1
    requests_per_message: int = 3
    kept_messages: int = 2_000
    kept_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 <= self.request_min_ms < self.request_max_ms:
            raise ArgumentError("repair needs 0 <= request_min_ms < request_max_ms")
        if self.groups < 1 or not 1 <= self.requests_per_message <= MAX_REPAIR_ENTRIES:
            raise ArgumentError("repair needs a group, and 1 to 256 requests per message")


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """The configuration of one participant of a channel; each has a ``sender_id`` of its own.

    - ``history_entries``: causal history of a message; ``gap_entries`` more name messages that
      a filter has just shown missing at a peer, out of the last ``gap_window``.
    - ``possible_acks`` filters with a message acknowledge it, if the probability that all of
      them are wrong is at most ``max_ack_error``.
    - ``resend_ms``, ``resend_possible_ms``: when a message is sent again, by its state; after
      ``max_sends`` in all it is given up.
    - ``lost_after_ms``: when a missing dependency is given up; None: never.
    - ``behind_after_ms``: how long a message may be on its way before a filter that has it proves
      that we lack it; None: filters are not compared.
    - ``missing_every_ms``: the interval of reports on missing messages.
    - ``sync_min_ms``, ``sync_max_ms``: silence after which a sync message is sent, drawn again
      each time, and 16 times as long after each in a row, up to ``sync_at_least_ms``;
      ``sync_owed_ms``: how long acknowledgements may be owed in a busy channel;
      ``sync_at_least_ms``: how long a participant may be silent in any channel.
    - ``max_clock_ahead_ms``: how far a received clock may take the own one past the time.
    - ``filter_every``: the filter goes with every n-th message of content; ``filter_every_ms``:
      with a sync message, when none was sent for so long; and when it is needed
      (`storenode.sds.schedule`).
    - ``name_heads``: histories also name what no other message names, and what no peer has
      acknowledged. Without it the filter goes with each sync message.
    - ``max_waiting``, ``max_waiting_bytes``: bounds of the incoming buffer; further messages are
      refused. ``max_missing`` dependencies are waited for, ``max_missing_of_sender`` of them
      because of one sender's messages; further ones are given up.
    - ``max_outgoing``: unacknowledged messages; sending more is refused.
    - ``release_at_sweep``: what waited is delivered by the sweep only, not at once.
    - ``older_revision``: send histories as plain IDs.
    """

    channel_id: str = DEFAULT_CHANNEL_ID
    sender_id: str = ""
    filter: FilterShape = field(default_factory=FilterShape)
    history_entries: int = 2
    gap_entries: int = 4
    gap_window: int = 128
    gap_every_ms: int = 1_000
    possible_acks: int = 2
    max_ack_error: float = 0.01
    resend_ms: int = 30_000
    resend_possible_ms: int = 120_000
    max_sends: int = 10
    lost_after_ms: int | None = 600_000
    behind_after_ms: int | None = 10_000
    missing_every_ms: int = 5_000
    sync_min_ms: int = 15_000
    sync_max_ms: int = 35_000
    sync_owed_ms: int = 60_000
    sync_at_least_ms: int = 600_000
    max_clock_ahead_ms: int = 3_600_000
    filter_every: int = 200
    filter_every_ms: int = 86_400_000
    name_heads: bool = True
    max_waiting: int = 10_000
    max_waiting_bytes: int = 64 * 1024 * 1024
    max_missing: int = 8_192
    max_missing_of_sender: int = 2_048
    max_outgoing: int = 10_000
    release_at_sweep: bool = False
    older_revision: bool = False
    repair: RepairConfig | None = field(default_factory=RepairConfig)

    def __post_init__(self) -> None:
        check_id("channel_id", self.channel_id)
        check_id("sender_id", self.sender_id)
        if not 0 < self.history_entries + self.gap_entries <= MAX_HISTORY_ENTRIES:
            raise ArgumentError(f"history_entries and gap_entries are 1 to {MAX_HISTORY_ENTRIES}")
        if self.gap_entries < 0 or not 0 <= self.gap_window <= MAX_GAP_IDS:
            raise ArgumentError(f"gap_entries is 0 or more, gap_window 0 to {MAX_GAP_IDS}")
        if not 0 < self.resend_ms <= self.resend_possible_ms:
            raise ArgumentError("resend_ms is positive and not longer than resend_possible_ms")
        if not 0 < self.sync_min_ms <= self.sync_max_ms:
            raise ArgumentError("sync_min_ms and sync_max_ms are positive and in order")
        if self.behind_after_ms is not None and self.behind_after_ms <= 0:
            raise ArgumentError("behind_after_ms is positive, or None")
        if self.sync_owed_ms <= 0 or self.sync_at_least_ms <= 0:
            raise ArgumentError("sync_owed_ms and sync_at_least_ms are positive")
        if self.filter.size_bytes > MAX_SDS_MESSAGE_BYTES // 2:
            raise ArgumentError(
                f"a filter of {self.filter.size_bytes} bytes leaves no room: shrink it"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is at least 1")
