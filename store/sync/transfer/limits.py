"""Limits of a transfer, of the registry of sessions and of the memory of refusals.

Source: the node's contract ("Limits", "Peers" and the schema of ``TransferFrame``). Whatever a peer
can make grow has its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from storenode.message.limits import MAX_BATCH_MESSAGES, MAX_RESPONSE_BYTES, NS_PER_S

MAX_FRAME_BYTES: Final = MAX_RESPONSE_BYTES
"""A frame that this node sends; one message that alone has more goes alone."""

FRAME_RESERVE_BYTES: Final = 1_024
"""What a frame has besides messages and answers at most: the session, the tags."""

MAX_REASON_BYTES: Final = 256
"""A reason for a refusal, in UTF-8; a longer one is cut."""

MAX_DETAILED_REFUSALS: Final = 1_024
"""Refusals that wait with a sentence of their own; more get the sentence of their kind."""

MAX_REASONS_SHOWN: Final = 8
"""Reasons that a report gives in the words of the peer."""

SESSION_ID_BYTES: Final = 16
SESSION_ID_CHARS: Final = 2 * SESSION_ID_BYTES
"""A session is named by 128 random bits in hexadecimal digits."""

MAX_SESSIONS: Final = 4
"""Sessions of one node in all, whoever began them."""

SILENCE_NS: Final = 60 * NS_PER_S
"""A session in which its peer says nothing for so long has ended."""

MAX_REMEMBERED: Final = 65_536
"""Refusals that are remembered, of all peers together."""

PACE_NS: Final = 300 * NS_PER_S
"""Within so long of waiting for its peer, a transfer moves `PACE_IDS` or `PACE_BYTES`, or ends."""

PACE_IDS: Final = 64
PACE_BYTES: Final = 256 * 1024

TOTAL_NS: Final = 3_600 * NS_PER_S
"""A transfer takes no longer than this in all; the next session goes on where it was."""

CALLER_GRACE_NS: Final = 15 * NS_PER_S
"""Who began a session has this much more patience: the other ends it first, and its status says
why, while a call that its caller ends only seems to be abandoned."""

REMEMBERED_NS: Final = 24 * 3600 * NS_PER_S
"""A refusal is forgotten after so long: the rules of a node change when its operator wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """How much of a transfer is under way at once.

    ``frame_messages`` and ``frame_bytes`` of messages go into one frame, with up to
    ``frame_answers`` answers. ``unsent_bytes`` are read from the database ahead of the stream, in
    portions of up to ``load_ids``; ``unstored_bytes`` of received frames may wait for the database
    before the stream is left alone. ``find_ids`` are looked up at once. More than
    ``unsolicited_messages`` end the session. The others: `store.sync.transfer.patience`.
    """

    frame_messages: int = MAX_BATCH_MESSAGES
    frame_bytes: int = 1024 * 1024
    frame_answers: int = MAX_BATCH_MESSAGES
    unsent_bytes: int = 4 * 1024 * 1024
    unstored_bytes: int = 8 * 1024 * 1024
    load_ids: int = 2_048
    find_ids: int = 4_096
    unsolicited_messages: int = MAX_BATCH_MESSAGES
    silence_ns: int = SILENCE_NS
    pace_ns: int = PACE_NS
    pace_ids: int = PACE_IDS
    pace_bytes: int = PACE_BYTES
    total_ns: int = TOTAL_NS

    def with_grace(self) -> TransferLimits:
        """Those of who began the session: see `CALLER_GRACE_NS`."""
        pace_ns, total_ns = self.pace_ns + CALLER_GRACE_NS, self.total_ns + CALLER_GRACE_NS
        return replace(self, pace_ns=pace_ns, total_ns=total_ns)
