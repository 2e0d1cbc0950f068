"""Confirmation state recorded in the transaction that stores a batch.

With the transaction that stores a batch go the unread events that it brings, and its messages are
kept here until its commit is seen: they need not be read from the database to be sent on. A batch
that was rolled back is kept under a token that no commit ever has, and goes in time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from store.db.pool import Connection
from store.db.writing.insert import Inserted
from store.db.writing.unread import MAX_UNREAD_EVENTS, UnreadEvents, Wanted, track
from store.domain.ports import Source
from store.gossip.commits import OwnBatch
from store.messages.record import RecordBatch
from storenode.common.bounded import BoundedDict

MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Messages that are kept until their commit is seen; the oldest batches make room, and are read
from the database."""

MESSAGE_OVERHEAD_BYTES: Final = 400
"""What a message in memory needs besides its bytes: the objects of its columns, and its places in
tables (measured with CPython 3.11)."""

MAX_TRACKED: Final = 262_144
"""Messages that are remembered to have become unread, 50 MiB at most; of what is forgotten nothing
is concluded."""

MAX_NEEDED: Final = 64
"""Stores that an unread event waits for at most; a node has no more peers."""

Share = tuple[RecordBatch, int]
"""What one caller wants stored, and how many stores must confirm it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A batch in its transaction: what was given, and what of it was new.

    ``token``: of its commit, as in `store.domain.hub.Place`.
    """

    token: int
    batch: RecordBatch
    source: Source
    added: Inserted

    def is_new(self, digest: bytes) -> bool:
        """True for a message that this transaction has added."""
        hashes = self.added.hashes
        return self.added.count > 0 if hashes is None else digest in hashes

    def new_places(self) -> Sequence[int]:
        """Where in the batch its new messages are, each once."""
        batch, hashes = self.batch, self.added.hashes
        if hashes is None and self.added.count == len(batch):
            return range(len(batch))
        places = {digest: place for place, digest in enumerate(batch.hashes) if self.is_new(digest)}
        return sorted(places.values())


class Tracking:
    """Used by the writer inside its transactions, and by whoever sees commits come by.

    ``max_confirms``: how many stores must confirm a new message, whoever brings it. Batches are
    kept only between `wake` and `rest`, while there are peers.
    """

    def __init__(self, unread: UnreadEvents, max_confirms: int) -> None:
        self._unread = unread
        self._max_confirms = max_confirms
        self._kept: OrderedDict[int, OwnBatch] = OrderedDict()
        self._kept_bytes = 0
        self._keeps = False
        self._tracked = BoundedDict[bytes, None](MAX_TRACKED)

    async def write(
        self, connection: Connection, shares: Sequence[Share], written: Written
    ) -> None:
        """Add the unread events of a batch, and keep it until its commit comes, if any are kept."""
        wanted = self._planned(shares, written)
        if wanted:
            await track(connection, wanted)
        self._note(written, wanted)

    @contextmanager
    def all_or_nothing(
        self, shares: Sequence[Share], written: Written
    ) -> Iterator[Sequence[Wanted]]:
        """The unread events of a batch, for the statement in this block, which adds them itself.

        As `write`, and undone where the block fails.
        """
        wanted = self._planned(shares, written)
        fresh = [row[0] for row in wanted if row[0] not in self._tracked]
        self._note(written, wanted)
        try:
            yield wanted
        except BaseException:
            self._unread.count -= len(wanted)
            self.forget(fresh)
            self.take(written.token)
            raise

    def _planned(self, shares: Sequence[Share], written: Written) -> list[Wanted]:
        wanted = list(self._wanted(shares, written))
        return wanted if self._unread.count + len(wanted) <= MAX_UNREAD_EVENTS else []

    def _note(self, written: Written, wanted: Sequence[Wanted]) -> None:
        self._unread.count += len(wanted)
        self.remember([row[0] for row in wanted])
        if self._keeps and written.added.count:
            self._keep(written, {row[0]: row[2] for row in wanted})

    def is_tracked(self, digest: bytes) -> bool:
        """True for a message that became unread for certain: that it is no more means something."""
        return digest in self._tracked

    def remember(self, hashes: Iterable[bytes]) -> None:
        """These are unread, or will be with the transaction that is under way."""
        self._tracked.update(dict.fromkeys(hashes))

    def forget(self, hashes: Iterable[bytes]) -> None:
        """As many stores have confirmed these as anybody wants: nobody asks for them any more."""
        for digest in hashes:
            self._tracked.pop(digest, None)

    def wake(self) -> None:
        """Keep batches from now on."""
        self._keeps = True

    def rest(self) -> None:
        """Keep none any more."""
        self._keeps = False
        self._kept.clear()
        self._kept_bytes = 0

    def take(self, token: int) -> OwnBatch | None:
        """The batch whose commit has come; None: it is not here."""
        kept = self._kept.pop(token, None)
        if kept is not None:
            self._kept_bytes -= kept.size_bytes
        return kept

    def _wanted(self, shares: Sequence[Share], written: Written) -> Iterator[Wanted]:
        usual = self._max_confirms
        if not usual and not any(asked for _, asked in shares):
            return
        needed: dict[bytes, Wanted] = {}
        for batch, asked in shares:
            columns = zip(batch.timestamps, batch.hashes, batch.content_digests, strict=True)
            for ts, digest, content in columns:
                most = min(max(asked, usual if written.is_new(digest) else 0), MAX_NEEDED)
                if most > (needed[digest][2] if digest in needed else 0):
                    needed[digest] = digest, ts, most, content
        yield from needed.values()

    def _keep(self, written: Written, needed: Mapping[bytes, int]) -> None:
        batch = written.batch
        new = written.new_places()
        size = batch.frame_bytes + MESSAGE_OVERHEAD_BYTES * len(batch)
        self.take(written.token)
        self._kept[written.token] = OwnBatch(batch, new, written.source, needed, size)
        self._kept_bytes += size
        while self._kept_bytes > MAX_KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes
