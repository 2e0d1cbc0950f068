"""Limits of the reconciliation engine.

Source: the node's contract, table "Limits", row "reconciliation". Everything that a peer can
make grow has its bound here, or, for the compact mode, in `reconcile.compact`.
"""

from dataclasses import dataclass
from typing import Final

MIN_SESSION_PAYLOAD_BYTES: Final = 8_192
"""Less is refused as a limit on payloads: an answer could not always make progress."""

MIN_SESSION_RANGES: Final = 64
"""Less is refused as a limit on ranges, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecLimits:
    """The limits of one payload; the defaults are the contract's.

    Attributes:
        max_payload_bytes: of the encoded ``RangesData``.
        max_ranges: in one payload.
        max_elements: SyncIDs in all item sets together.
        max_shards: named in one payload; a shard's number has 16 bits (WAKU2-RELAY-SHARDING).
    """

    max_payload_bytes: int = 64 * 1024 * 1024
    max_ranges: int = 1_048_576
    max_elements: int = 1_048_576
    max_shards: int = 65_536


DEFAULT_CODEC_LIMITS: Final = CodecLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits of one session; the defaults are the contract's.

    Attributes:
        payload: the limits of each payload.
        max_rounds: payloads that the initiator may send.
        max_differences: SyncIDs that are reported; the rest is left to the next session.
        max_cut_ranges: ranges that come of a payload's ranges whose upper bound must be cut into
            several: a decoder has to understand such bounds, although an encoder never writes them.

    Raises:
        ValueError: a session could not work with so little.
    """

    payload: CodecLimits = DEFAULT_CODEC_LIMITS
    max_rounds: int = 64
    max_differences: int = 1_000_000
    max_cut_ranges: int = 65_536

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryLimits:
    """The limits of what a view over summaries takes into memory.

    Attributes:
        kept_ids: IDs read from storage that are cached for the next read: about 10 MiB.
        ids_at_once: IDs that are read from storage at a time: about 16 MiB meanwhile.
        kept_buckets: shorter buckets that are cached for the next read: about 6 MiB.
        parents_at_once: longer buckets that are divided at a time: hours into 61,440 minutes.
        few_ids: mean IDs per shorter bucket below which IDs are read instead, such as 120 an hour.
        spans_at_once: spans that are measured at a time.
        parts_at_once: parts into which spans are cut at a time, and the most of a single span.
        probes: hashes that are looked for in storage for one read, the best part of a second.
        answer_ids: IDs of one answer: more than a session ever asks for.
    """

    kept_ids: int = 262_144
    ids_at_once: int = 131_072
    kept_buckets: int = 65_536
    parents_at_once: int = 1_024
    few_ids: int = 2
    spans_at_once: int = 65_536
    parts_at_once: int = 8_192
    probes: int = 16_384
    answer_ids: int = 2 * DEFAULT_CODEC_LIMITS.max_elements + DEFAULT_SESSION_LIMITS.max_differences


DEFAULT_SUMMARY_LIMITS: Final = SummaryLimits()
