"""Memory that the process has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from store.runtime import resources
from store.runtime.resources import TRIM_GROWTH_BYTES, Trimmer, resident_bytes

MIB = 1024 * 1024
PIECE_BYTES = 32 * 1024


async def test_what_was_freed_in_pieces_is_given_back() -> None:
    trim = resources.trimming()
    assert trim is not None
    trim()  # what other tests have freed would be used again, and show as no growth
    trimmer = Trimmer()
    before = resident_bytes()
    pieces = [bytes([number % 251]) * PIECE_BYTES for number in range(8_000)]
    kept = pieces[::1_000]
    resident = resident_bytes()
    assert resident - before > 200 * MIB
    del pieces
    await trimmer.trim_grown()
    assert resident - resident_bytes() > 150 * MIB
    assert len(kept) == 8


LARGE_BLOCKS = """
from store.runtime import resources

resources.map_large_blocks()
# What glibc has freed once in this size it keeps the next time, if it is not told otherwise.
larger = bytearray(30 << 20)
del larger
# Half a MiB more than is told, since some kernels are late to count pages.
blocks = [bytearray(41 << 19), bytearray(200_000)]
resident = resources.resident_bytes()
del blocks[0]
print(resident - resources.resident_bytes() >> 20)
"""


def test_a_large_block_is_given_back_at_once_whatever_lies_behind_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 20


async def test_a_process_that_stays_large_is_trimmed_when_it_grows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, tries = [0], []
    monkeypatch.setattr(resources, "resident_bytes", lambda: sizes[0])
    monkeypatch.setattr(resources, "trimming", lambda: lambda: tries.append(sizes[0]))
    trimmer = Trimmer()
    for size, times in ((0.9, 0), (2, 1), (2, 1), (2.9, 1), (3, 2), (1, 2), (2, 3)):
        sizes[0] = int(size * TRIM_GROWTH_BYTES)
        await trimmer.trim_grown()
        assert len(tries) == times
