"""Limits of the reconciliation engine.

Source: the node's contract, table "Limits", row "reconciliation". Everything that a peer can
make grow has its bound here.
"""

from dataclasses import dataclass
from typing import Final

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""One encoded ``RangesData``."""

MAX_RANGES: Final = 1_048_576
"""Ranges in one payload."""

MAX_ELEMENTS: Final = 1_048_576
"""SyncIDs in all item sets of one payload together."""

MAX_SHARDS: Final = 65_536
"""Shards named in one payload: a shard's number has 16 bits (WAKU2-RELAY-SHARDING)."""

MAX_ROUNDS: Final = 64
"""Payloads that the initiator of one session may send."""

MAX_DIFFERENCES: Final = 1_000_000
"""SyncIDs that one session reports; the rest is left to the next session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecLimits:
    """The limits of one payload; the defaults are the contract's."""

    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_ranges: int = MAX_RANGES
    max_elements: int = MAX_ELEMENTS
    max_shards: int = MAX_SHARDS


DEFAULT_CODEC_LIMITS: Final = CodecLimits()

MAX_CUT_RANGES: Final = 65_536
"""Ranges that come of a payload's ranges whose upper bound must be cut into several: bounds that
a decoder has to understand although an encoder never writes them."""

MAX_SESSION_SECONDS: Final = 600
"""From a session's first step to its end."""

MIN_SESSION_PAYLOAD_BYTES: Final = 8_192
"""Less is not accepted as a limit on payloads: an answer could not always make progress."""

MIN_SESSION_RANGES: Final = 64
"""Less is not accepted as a limit on ranges, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits of one session; the defaults are the contract's.

    Raises:
        ValueError: a session could not work with so little.
    """

    payload: CodecLimits = DEFAULT_CODEC_LIMITS
    max_rounds: int = MAX_ROUNDS
    max_differences: int = MAX_DIFFERENCES
    max_cut_ranges: int = MAX_CUT_RANGES
    max_seconds: int = MAX_SESSION_SECONDS

    def __post_init__(self) -> None:
        if self.payload.max_payload_bytes < MIN_SESSION_PAYLOAD_BYTES:
            raise ValueError(
                f"max_payload_bytes is {self.payload.max_payload_bytes}: allow"
                f" {MIN_SESSION_PAYLOAD_BYTES} or more"
            )
        if self.payload.max_ranges < MIN_SESSION_RANGES or self.payload.max_elements < 1:
            raise ValueError(
                f"max_ranges is {self.payload.max_ranges} and max_elements"
                f" {self.payload.max_elements}: allow {MIN_SESSION_RANGES} and 1 or more"
            )


DEFAULT_SESSION_LIMITS: Final = SessionLimits()

MAX_KEPT_IDS: Final = 262_144
"""IDs read from storage that a view keeps for the next read: about 10 MiB."""

MAX_IDS_AT_ONCE: Final = 131_072
"""IDs that a view takes from storage at a time: about 16 MiB while it does."""

MAX_KEPT_BUCKETS: Final = 65_536
"""Shorter buckets that a view keeps for the next read: about 6 MiB."""

MAX_PARENTS_AT_ONCE: Final = 1_024
"""Longer buckets that are taken apart at a time: hours into 61,440 minutes at most."""

MAX_FEW_IDS: Final = 2
"""A bucket that has at most so many IDs for each shorter bucket that it could have, such as 120 in
an hour, is taken apart into IDs at once."""

MAX_SPANS_AT_ONCE: Final = 65_536
"""Spans that are measured at a time."""

MAX_PARTS_AT_ONCE: Final = 8_192
"""Parts into which spans are cut at a time; no single span is cut into more."""

MAX_PROBES: Final = 16_384
"""Hashes that are looked for in storage for one read, the best part of a second."""

MAX_ANSWER_IDS: Final = 2 * MAX_ELEMENTS + MAX_DIFFERENCES
"""IDs that one answer may hold: more than a session ever asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryLimits:
    """The limits of what a view over summaries takes into memory."""

    kept_ids: int = MAX_KEPT_IDS
    ids_at_once: int = MAX_IDS_AT_ONCE
    kept_buckets: int = MAX_KEPT_BUCKETS
    parents_at_once: int = MAX_PARENTS_AT_ONCE
    few_ids: int = MAX_FEW_IDS
    spans_at_once: int = MAX_SPANS_AT_ONCE
    parts_at_once: int = MAX_PARTS_AT_ONCE
    probes: int = MAX_PROBES
    answer_ids: int = MAX_ANSWER_IDS


DEFAULT_SUMMARY_LIMITS: Final = SummaryLimits()
