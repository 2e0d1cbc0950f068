"""A set of message IDs: about 20 bytes per ID, in constant time. It never shrinks.

It is what remembers that a dependency was met when the log entry itself has left memory. An ID
is kept as 128 bits of BLAKE2 with a secret salt, in small unordered shards. The
shards are split one at a time as the set grows (linear hashing), so that no insertion is slow.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Self

from storenode.sds.rng import Rng

DIGEST_BYTES: Final = 16
SALT_BYTES: Final = 16
SHARD_IDS: Final = 64
"""Average number of IDs in a shard, which is searched from its beginning."""


def draw_salt(rng: Rng) -> bytes:
    """Return a random salt."""
    return bytes(int(rng.uniform(0, 256)) & 0xFF for _ in range(SALT_BYTES))


class IdSet:
    """IDs as salted digests. ``salt`` (16 bytes) keeps others from crowding one shard."""

    __slots__ = ("_count", "_level", "_salt", "_shards")

    def __init__(self, salt: bytes) -> None:
        if len(salt) != SALT_BYTES:
            raise ValueError(f"a salt of {len(salt)} bytes must have {SALT_BYTES}")
        self._salt = salt
        self._shards = [bytearray()]
        self._level = 0
        self._count = 0

    @property
    def salt(self) -> bytes:
        """The salt of the digests."""
        return self._salt

    def __len__(self) -> int:
        return self._count

    def __contains__(self, message_id: str) -> bool:
        digest = self._digest(message_id)
        return _find(self._shards[self._place(digest)], digest)

    def add(self, message_id: str) -> None:
        """Insert an ID; nothing happens when it is there."""
        digest = self._digest(message_id)
        if not _find(self._shards[self._place(digest)], digest):
            self._append(digest)

    def discard(self, message_id: str) -> None:
        """Remove an ID; nothing happens when it is not there."""
        digest = self._digest(message_id)
        shard = self._shards[self._place(digest)]
        at = _position(shard, digest)
        if at >= 0:
            del shard[at : at + DIGEST_BYTES]
            self._count -= 1

    def digests(self) -> bytes:
        """Return all digests, 16 bytes each, in no particular order."""
        return b"".join(self._shards)

    @classmethod
    def from_digests(cls, salt: bytes, digests: bytes) -> Self:
        """Make the set again from `digests` and its salt.

        Raises:
            ValueError: the length is no multiple of a digest's.
        """
        if len(digests) % DIGEST_BYTES:
            raise ValueError("the set of met IDs is not made of whole digests")
        found = cls(salt)
        for digest in _split(digests):
            found._append(digest)
        return found

    def check(self) -> None:
        """Verify the invariants: every digest is whole, in its shard, and there once."""
        seen = set()
        for place, shard in enumerate(self._shards):
            for digest in _split(bytes(shard)):
                assert self._place(digest) == place
                seen.add(digest)
        assert len(seen) == self._count == sum(map(len, self._shards)) // DIGEST_BYTES
        assert 1 << self._level <= len(self._shards) < 2 << self._level

    def _digest(self, message_id: str) -> bytes:
        return blake2b(message_id.encode(), digest_size=DIGEST_BYTES, key=self._salt).digest()

    def _place(self, digest: bytes) -> int:
        number = int.from_bytes(digest[:4])
        place = number & ((2 << self._level) - 1)
        return place if place < len(self._shards) else number & ((1 << self._level) - 1)

    def _append(self, digest: bytes) -> None:
        self._shards[self._place(digest)] += digest
        self._count += 1
        if self._count > len(self._shards) * SHARD_IDS:
            self._split_one()

    def _split_one(self) -> None:
        split = len(self._shards) - (1 << self._level)
        digests = bytes(self._shards[split])
        self._shards[split] = bytearray()
        self._shards.append(bytearray())
        for digest in _split(digests):
            self._shards[self._place(digest)] += digest
        if len(self._shards) == 2 << self._level:
            self._level += 1


def _split(digests: bytes) -> Iterator[bytes]:
    for start in range(0, len(digests), DIGEST_BYTES):
        yield digests[start : start + DIGEST_BYTES]


def _find(shard: bytearray, digest: bytes) -> bool:
    return _position(shard, digest) >= 0


def _position(shard: bytearray, digest: bytes) -> int:
    """Return the position of a digest; negative when it is not there."""
    found = shard.find(digest)
    while found >= 0 and found % DIGEST_BYTES:
        found = shard.find(digest, found + 1)
    return found
