"""Reading the ranges of a payload: small runs one by one, large ones in bulk."""

from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.codec.bulk import BulkParser
from reconcile.codec.draft import Draft
from reconcile.codec.ranges import Ranges
from reconcile.codec.sequential import SequentialParser
from reconcile.codec.varints import Source
from reconcile.codec.verify import in_order
from reconcile.errors import LimitExceeded, MalformedPayload
from reconcile.ids import HASH_DTYPE, HASH_WORDS, SyncIds
from reconcile.limits import CodecLimits
from storenode.message.limits import HASH_BYTES

_MIN_BULK_BYTES: Final = 3072
"""Less is read one by one, faster than arrays are set up."""

_MIN_BULK_BYTES_OF_SETS: Final = 16 * 1024
"""The same where there are item sets, for which more has to be set up."""

_FIRST_SINGLY: Final = 2
"""Ranges read one by one before the arrays take over: the first bound may be a large number."""

_MIN_RUN: Final = 16
_MAX_RUN: Final = 4096
"""Ranges read one by one where the arrays came to a stop."""

_MIN_BLOCK_BYTES: Final = 32 * 1024
_MAX_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Of a payload at a time: bounds the arrays that are needed meanwhile."""


_NO_HASHES: Final = np.empty((0, HASH_BYTES), HASH_DTYPE)


def parse_ranges(data: bytes, at: int, limits: CodecLimits) -> Ranges:
    """The ranges of a payload from offset ``at`` to its end.

    Raises:
        MalformedPayload: the bytes are not what the specification says.
        LimitExceeded: there are more ranges or items than allowed.
    """
    if kernel.compiled is not None:
        return parse_compiled(kernel.compiled, data, at, limits)
    if len(data) - at < _MIN_BULK_BYTES:
        return parse_singly(data, at, limits)
    return parse_in_bulk(data, at, limits)


def parse_compiled(own: kernel.Kernel, data: bytes, at: int, limits: CodecLimits) -> Ranges:
    """What ``parse_ranges`` gives or raises, by compiled code unless it raises."""
    found = own.survey(data, at, limits.max_ranges, limits.max_elements)
    if found is None:
        return parse_singly(data, at, limits)
    ranges, fingerprints, sets, items, has_hashes = found
    upper = SyncIds.at_times(np.empty(ranges, np.int64))
    if has_hashes:
        upper = SyncIds(upper.timestamps, np.empty((ranges, HASH_BYTES), HASH_DTYPE))
    kinds = np.empty(ranges, np.uint8)
    prints = np.empty((fingerprints, HASH_WORDS), np.uint64)
    counts, reconciled = np.empty(sets, np.int64), np.empty(sets, np.bool_)
    item_times, item_hashes = np.empty(items, np.int64), np.empty((items, HASH_BYTES), HASH_DTYPE)
    own.parse(
        data,
        at,
        upper.timestamps,
        upper.hashes if has_hashes else _NO_HASHES,
        kinds,
        prints,
        counts,
        reconciled,
        item_times,
        item_hashes,
    )
    return Ranges(upper, kinds, prints, counts, reconciled, SyncIds(item_times, item_hashes))


def parse_in_bulk(data: bytes, at: int, limits: CodecLimits) -> Ranges:
    """What ``parse_ranges`` gives or raises, by arrays as far as possible whatever the size."""
    draft = Draft()
    try:
        _read_all(data, at, limits, draft)
    except (MalformedPayload, LimitExceeded):
        # Something in front of it may be wrong too, which bulk reading has not looked at.
        return parse_singly(data, at, limits)
    ranges = draft.ranges(data)
    if draft.prefix_rows or draft.items:
        return ranges if in_order(ranges) else parse_singly(data, at, limits)
    return ranges


def parse_singly(data: bytes, at: int, limits: CodecLimits) -> Ranges:
    """What ``parse_ranges`` gives or raises, reading and checking one range at a time."""
    draft = Draft()
    SequentialParser(data, at, limits, draft).run(limits.max_ranges + 1)
    return draft.ranges(data)


def _read_all(data: bytes, at: int, limits: CodecLimits, draft: Draft) -> None:
    """Alternate between the two parsers.

    Blocks grow as long as bulk reading comes to their ends, and shrink to what it read. Where
    that is little, the runs in between double: bytes that defeat it are looked at a few times.
    """
    source = Source.of(data)
    singly = SequentialParser(data, at, limits, draft, source)
    bulk = BulkParser(source, limits, draft)
    singly.run(_FIRST_SINGLY)
    block, run = 32 * _MIN_BLOCK_BYTES, _MIN_RUN
    while len(data) - singly.at >= _least_for_bulk(draft):
        begin = singly.at
        end = bulk.run(begin, singly.previous[0], begin + block)
        if end > begin:
            singly.resume(end)
        if end >= begin + block:
            block = min(4 * block, _MAX_BLOCK_BYTES)
            continue
        if bulk.shortened and end - begin >= _MIN_BULK_BYTES:
            continue
        run = _MIN_RUN if end - begin >= block // 8 else min(2 * run, _MAX_RUN)
        block = max(_MIN_BLOCK_BYTES, min(2 * (end - begin), _MAX_BLOCK_BYTES))
        singly.run(run)
    singly.run(limits.max_ranges + 1)


def _least_for_bulk(draft: Draft) -> int:
    return _MIN_BULK_BYTES_OF_SETS if draft.item_counts else _MIN_BULK_BYTES
