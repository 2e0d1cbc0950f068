"""SDS-Repair: asking the other participants for what is missing, and answering them.

A request waits for a time that depends on who asks for what, so that few ask at once; it is
carried by the next own message after that, and again in the same rhythm until the message came
or was given up. Seeing another's request for the same message puts ours off. An answer waits
too, the sender's own being first; seeing the message meanwhile cancels it, and a message that was
answered lately is not answered again. The caller of the channel reads what is not in memory
(`Recall`). How many messages are read at once, and how many bytes are sent again in an epoch, is
bounded, the latter for each participant that asks and in all.

Source: the newest revision's extension SDS-R, and the published implementation for its times.
"""

from collections import Counter, OrderedDict
from functools import lru_cache
from hashlib import sha256
from math import inf

from storenode.common.bounded_dict import BoundedDict
from storenode.sds.codec import Entry, SdsMessage, bytes_of
from storenode.sds.config import RepairConfig
from storenode.sds.limits import (
    ANSWER_EPOCH_MS,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_BYTES_PER_REQUESTER,
    MAX_PENDING_ANSWERS,
    MAX_RECALLED_AT_ONCE,
    MAX_REMEMBERED_ANSWERS,
    RECALL_EVERY_MS,
)
from storenode.sds.log import MessageLog


@lru_cache(maxsize=1024)
def number_of(text: str) -> int:
    """Return the first 64 bits of SHA-256 over UTF-8."""
    return int.from_bytes(sha256(text.encode()).digest()[:8])


def request_delay_ms(config: RepairConfig, own_id: str, message_id: str) -> int:
    """Return how long a participant waits before it asks for a message."""
    span = config.request_max_ms - config.request_min_ms
    return number_of(own_id + message_id) % span + config.request_min_ms


def answer_delay_ms(config: RepairConfig, own_id: str, sender_id: str, message_id: str) -> int:
    """Return how long a participant waits before it answers; 0 if it sent the message."""
    distance = number_of(own_id) ^ number_of(sender_id)
    return distance * number_of(message_id) % config.request_max_ms


def may_answer(config: RepairConfig, own_id: str, sender_id: str, message_id: str) -> bool:
    """Return True if a participant is of the group that answers for a sender's message."""
    if config.groups == 1 or own_id == sender_id:
        return True
    own, sender = number_of(own_id + message_id), number_of(sender_id + message_id)
    return own % config.groups == sender % config.groups


class RepairAnswers:
    """The messages that others ask for, by when they are to be sent again.

    ``spent`` are the bytes that were sent in this ``epoch``, by who asked. Names are claims.
    """

    def __init__(self, config: RepairConfig | None, own_id: str) -> None:
        self._config = config
        self._own_id = own_id
        self._next_ms = self._bytes = 0
        self.kept: OrderedDict[str, SdsMessage] = OrderedDict()
        self.pending: dict[str, int] = {}
        self.answered = BoundedDict[str, int](MAX_REMEMBERED_ANSWERS)
        self.requesters = BoundedDict[str, str](MAX_REMEMBERED_ANSWERS)
        self.epoch = 0
        self.spent: Counter[str] = Counter()

    def keep(self, message: SdsMessage) -> None:
        """Remember a delivered message; the oldest make room."""
        if self._config is None or message.message_id in self.kept:
            return
        self.kept[message.message_id] = message
        self._bytes += bytes_of(message)
        most, most_bytes = self._config.kept_messages, self._config.kept_bytes
        while self.kept and (len(self.kept) > most or self._bytes > most_bytes):
            self._bytes -= bytes_of(self.kept.popitem(last=False)[1])

    def drop(self, message_id: str) -> None:
        """Forget a message that turned out not to be the genuine one."""
        self.seen(message_id)
        if (message := self.kept.pop(message_id, None)) is not None:
            self._bytes -= bytes_of(message)

    def offer(self, entry: Entry, log: MessageLog, now_ms: int, requester: str) -> bool:
        """Note that a participant wants a message; return False if nothing comes of it."""
        message_id, config = entry.message_id, self._config
        if config is None or len(self.pending) >= MAX_PENDING_ANSWERS:
            return False
        known, at_ms = log.recent(message_id), self.answered.get(message_id)
        lately = at_ms is not None and now_ms - at_ms < config.request_min_ms
        if lately or message_id in self.pending or (known is None and message_id not in log):
            return False
        # The sender of an old message is known by the request's word only, until it is read.
        sender_id = (entry.sender_id if known is None else known.sender_id) or ""
        if sender_id and not may_answer(config, self._own_id, sender_id, message_id):
            return False
        delay_ms = answer_delay_ms(config, self._own_id, sender_id, message_id)
        self.pending[message_id] = now_ms + delay_ms
        self.requesters[message_id] = requester
        return True

    def seen(self, message_id: str) -> None:
        """Cancel the answer with a message that came again: another participant has answered."""
        self.pending.pop(message_id, None)
        self.requesters.pop(message_id, None)

    def take(self, now_ms: int) -> tuple[str, ...]:
        """Return the messages whose answer is due, the longest due first; they are answered."""
        if not self.pending or now_ms < self._next_ms:
            return ()
        due = sorted((at, key) for key, at in self.pending.items() if at <= now_ms)
        taken = tuple(key for _, key in due[:MAX_RECALLED_AT_ONCE])
        for message_id in taken:
            del self.pending[message_id]
            self.answered[message_id] = now_ms
        if taken:
            self._next_ms = now_ms + RECALL_EVERY_MS
        return taken

    def spend(self, now_ms: int, requester: str, size_bytes: int) -> bool:
        """Count bytes that are sent again; return False where too many were."""
        if now_ms // ANSWER_EPOCH_MS != self.epoch:
            self.epoch = now_ms // ANSWER_EPOCH_MS
            self.spent.clear()
        if (
            self.spent[requester] + size_bytes > MAX_ANSWER_BYTES_PER_REQUESTER
            or self.spent.total() + size_bytes > MAX_ANSWER_BYTES
        ):
            return False
        self.spent[requester] += size_bytes
        return True

    def next_due_ms(self) -> float:
        """Return when the next answer is due."""
        return max(min(self.pending.values(), default=inf), self._next_ms)
