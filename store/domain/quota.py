"""Quotas of callers: rates, and calls and streams at the same time.

Rules:

1. A rate is a token bucket that holds one second's worth (`Bucket`). What does not fit is refused,
   never queued. An amount larger than the bucket passes when the bucket is full, and is paid back
   before anything else passes: the average holds for every size of batch.
2. Every caller has an `Account`, named by a key: its name in the token file, or the host it comes
   from. Of strangers at most ``max_strangers`` are kept apart; those at rest make room for new
   ones, and those beyond share one account, so that pushing out old accounts gives no fresh
   bucket, and no crowd of strangers touches the accounts of named callers.
3. Calls and streams under way are counted per account and for the node as a whole.

Time is a monotonic clock's nanoseconds, given as ``now_ns``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from storenode.message.limits import MAX_REQUEST_BYTES, NS_PER_S

DEFAULT_REQUESTS_PER_S: Final = 20_000
DEFAULT_MESSAGES_PER_S: Final = 500_000
DEFAULT_RECEIVED_BYTES_PER_S: Final = 1024 * 1024 * 1024
DEFAULT_CALLS: Final = 2_000
"""Unary calls of one caller at the same time."""

DEFAULT_STREAMS: Final = 10_000
"""Streaming calls of one caller at the same time; an idle follower is one of them."""

DEFAULT_UNSENT_BYTES: Final = 128 * 1024 * 1024
"""The size limit of all answers that callers have not received yet, with their copies."""

MAX_NODE_CALLS: Final = 10_000
MAX_NODE_STREAMS: Final = 20_000
"""Calls and streams of all callers together."""

MAX_STRANGERS: Final = 10_000
"""Callers without a name in the token file that are distinguished."""

_BURST_NS: Final = NS_PER_S
"""The time whose rate may be used at once: a bucket holds one second's worth."""

_LOOKED_AT: Final = 64
"""Accounts that are looked at to find one at rest, which makes room for a new caller."""


class CallKind(StrEnum):
    """The count that a call belongs to."""

    CALL = "concurrent calls"
    STREAM = "concurrent streams"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one caller, with the names of the token file; ``None`` leaves a rate unlimited.

    ``bytes_per_second`` counts what is received. ``request_bytes`` bounds one request,
    ``message_bytes`` one encoded message (``None``: the node's own limit).
    """

    requests_per_second: int | None = DEFAULT_REQUESTS_PER_S
    messages_per_second: int | None = DEFAULT_MESSAGES_PER_S
    bytes_per_second: int | None = DEFAULT_RECEIVED_BYTES_PER_S
    concurrent_calls: int = DEFAULT_CALLS
    concurrent_streams: int = DEFAULT_STREAMS
    request_bytes: int = MAX_REQUEST_BYTES
    message_bytes: int | None = None


class QuotaExceededError(Exception):
    """A refusal, whose text says what was too much, the limit and what to do.

    A retry may pass after ``retry_after_ns`` (0: when a call under way has ended).
    """

    def __init__(self, limit: str, value: int, retry_after_ns: int = 0) -> None:
        wait_ms = -(-retry_after_ns // 1_000_000)
        super().__init__(
            f"limit of {value:,} {limit} is used up: retry in {wait_ms:,} ms"
            if retry_after_ns
            else f"limit of {value:,} {limit} is reached: end one, then retry"
        )
        self.retry_after_ns = retry_after_ns


class Bucket:
    """A token bucket as one number: the time at which all that was taken is paid for.

    ``what`` it has is for the refusal; a rate of None has no limit.
    """

    __slots__ = ("_due_ns", "_what", "rate")

    def __init__(self, rate_per_s: int | None, what: str) -> None:
        if rate_per_s is not None and rate_per_s <= 0:
            raise ValueError(f"a rate of {rate_per_s} per second is impossible: give 1 or more")
        self.rate = rate_per_s
        self._what = what
        self._due_ns = 0

    def take(self, amount: int, now_ns: int) -> None:
        """Take ``amount`` tokens.

        Raises:
            QuotaExceededError: there are fewer; nothing was taken.
        """
        if self.rate is None:
            return
        due_ns = max(self._due_ns, now_ns)
        cost_ns = -(-amount * NS_PER_S // self.rate)
        wait_ns = due_ns - now_ns - _BURST_NS + min(cost_ns, _BURST_NS)
        if wait_ns > 0:
            raise QuotaExceededError(f"{self._what} per second", self.rate, wait_ns)
        self._due_ns = due_ns + cost_ns

    def is_full(self, now_ns: int) -> bool:
        """Return True if nothing is owed, so that a new bucket would be no different."""
        return self._due_ns <= now_ns

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self.rate is None or self.rate > 0
        assert self._due_ns >= 0


class Account:
    """The usage of one caller. Made by `Quota`, which also bounds the calls of all.

    ``requests``, ``messages`` to be published, and bytes ``received`` are taken of buckets.
    """

    __slots__ = ("_quota", "_running", "limits", "messages", "received", "requests")

    def __init__(self, quota: Quota, limits: ClientLimits) -> None:
        self._quota = quota
        self._running = {CallKind.CALL: 0, CallKind.STREAM: 0}
        self.set_limits(limits)

    def set_limits(self, limits: ClientLimits) -> None:
        """Set other limits, with full buckets; calls under way stay counted."""
        self.limits = limits
        self.requests = Bucket(limits.requests_per_second, "requests")
        self.messages = Bucket(limits.messages_per_second, "messages")
        self.received = Bucket(limits.bytes_per_second, "received bytes")

    def begin(self, kind: CallKind, now_ns: int) -> None:
        """Count a call that begins, and its request; `end` must follow once.

        Raises:
            QuotaExceededError: it may not begin, and `end` does not follow.
        """
        running, of_all = self._running, self._quota.running
        limits = self.limits
        allowed = limits.concurrent_calls if kind is CallKind.CALL else limits.concurrent_streams
        if running[kind] >= allowed:
            raise QuotaExceededError(f"{kind} of one client", allowed)
        allowed = self._quota.allowed[kind]
        if of_all[kind] >= allowed:
            raise QuotaExceededError(f"{kind} of this node", allowed)
        self.requests.take(1, now_ns)
        running[kind] += 1
        of_all[kind] += 1

    def end(self, kind: CallKind) -> None:
        """Count the end of a call that `begin` let in."""
        assert self._running[kind] > 0, "a call ended that never began"
        self._running[kind] -= 1
        self._quota.running[kind] -= 1

    def at_rest(self, now_ns: int) -> bool:
        """Return True if forgetting the account changes nothing: no call, nothing owed."""
        return not any(self._running.values()) and all(
            bucket.is_full(now_ns) for bucket in (self.requests, self.messages, self.received)
        )


class Quota:
    """The accounts of all callers; ``running`` and ``allowed`` are calls of each kind in all."""

    def __init__(
        self,
        max_strangers: int = MAX_STRANGERS,
        max_calls: int = MAX_NODE_CALLS,
        max_streams: int = MAX_NODE_STREAMS,
    ) -> None:
        self._max_strangers = max_strangers
        self.allowed = {CallKind.CALL: max_calls, CallKind.STREAM: max_streams}
        self.running = {CallKind.CALL: 0, CallKind.STREAM: 0}
        self._named: dict[str, Account] = {}
        self._strangers: dict[str, Account] = {}
        self._shared: Account | None = None

    def account(self, key: str, limits: ClientLimits, now_ns: int, *, named: bool) -> Account:
        """Return the account of ``key``, under ``limits`` from now on.

        ``named``: the operator named this caller, so the number of such keys is the operator's.
        """
        account = (self._named if named else self._strangers).get(key)
        if account is None:
            return self._open(key, limits, now_ns, named=named)
        if account.limits is not limits and account.limits != limits:
            account.set_limits(limits)
        return account

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert len(self._strangers) <= self._max_strangers
        for kind, allowed in self.allowed.items():
            assert 0 <= self.running[kind] <= allowed

    def _open(self, key: str, limits: ClientLimits, now_ns: int, *, named: bool) -> Account:
        if named:
            return self._named.setdefault(key, Account(self, limits))
        if len(self._strangers) >= self._max_strangers:
            self._make_room(now_ns)
        if len(self._strangers) < self._max_strangers:
            return self._strangers.setdefault(key, Account(self, limits))
        if self._shared is None:
            self._shared = Account(self, limits)
        elif self._shared.at_rest(now_ns):
            self._shared.set_limits(limits)
        return self._shared

    def _make_room(self, now_ns: int) -> None:
        """Forget an account at rest; those that are not are looked at last the next time."""
        for key in list(islice(self._strangers, _LOOKED_AT)):
            account = self._strangers.pop(key)
            if account.at_rest(now_ns):
                return
            self._strangers[key] = account
