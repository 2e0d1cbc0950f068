"""Files of a node, and memory that goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from store.db.primary import SeenState
from store.runtime.errors import WrongConfigurationError
from store.runtime.node_files import MAX_FILE_BYTES, NODE_ID_FILE, SeenFiles, kept_node_id
from store.runtime.resources import trim_memory

STORE = bytes(range(16))
SEEN = SeenState(STORE, 7_711_354_424_782_947_792, 3, (12, 2**64 - 1))
FILE = "seen-00010203-0405-0607-0809-0a0b0c0d0e0f.json"


def test_what_is_saved_is_loaded_and_each_store_has_its_own(tmp_path: Path) -> None:
    files = SeenFiles(tmp_path)
    assert files.load(STORE) is None
    files.save(SEEN)
    files.save(SeenState(STORE[::-1], 0, 0, (0, 0)))
    assert files.load(STORE) == SEEN
    assert [path.name for path in tmp_path.glob("*0e0f.json")] == [FILE]
    assert len(list(tmp_path.iterdir())) == 2, "nothing temporary is left"


def test_what_cannot_be_saved_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SeenFiles(tmp_path)
    files.save(SEEN)

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.save(SeenState(STORE, 1, 1, (1, 1)))
    assert files.load(STORE) == SEEN
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"system": "1", "timeline": 1, "position": 1}',
        '{"system": "x", "timeline": 1, "position": 1, "token": 1}',
        '{"system": "1", "timeline": -1, "position": 1, "token": 1}',
        '{"system": null, "timeline": 1, "position": 1, "token": 1}',
        "\x00" * 100,
        "[" * 500,
        " " * (MAX_FILE_BYTES + 1),
    ],
)
def test_a_damaged_file_is_named_and_not_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(WrongConfigurationError, match=r"seen-.*storenode db accept"):
        SeenFiles(tmp_path).load(STORE)


def test_the_node_id_is_made_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    made = kept_node_id(tmp_path)
    assert kept_node_id(tmp_path) == made
    (tmp_path / NODE_ID_FILE).write_bytes(b"me\xff")
    with pytest.raises(WrongConfigurationError, match="a node ID of 32 hexadecimal digits"):
        kept_node_id(tmp_path)


# Memory

MIB = 1024 * 1024
PIECE_BYTES = 32 * 1024


async def test_what_was_freed_in_pieces_is_given_back() -> None:
    process = psutil.Process()
    await trim_memory()  # what other tests have freed would be used again, and show as no growth
    before = process.memory_info().rss
    pieces = [bytes([number % 251]) * PIECE_BYTES for number in range(8_000)]
    kept = pieces[::1_000]
    resident = process.memory_info().rss
    assert resident - before > 200 * MIB
    del pieces
    await trim_memory()
    assert resident - process.memory_info().rss > 150 * MIB
    assert len(kept) == 8


LARGE_BLOCKS = """
import psutil

from store.runtime import resources

resources.map_large_blocks()
# What glibc has freed once in this size it keeps the next time, if it is not told otherwise.
larger = bytearray(30 << 20)
del larger
# Half a MiB more than the reported growth, since some kernels are late to count pages.
blocks = [bytearray(41 << 19), bytearray(200_000)]
process = psutil.Process()
resident = process.memory_info().rss
del blocks[0]
print(resident - process.memory_info().rss >> 20)
"""


def test_a_large_block_is_given_back_at_once_whatever_lies_behind_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 20
