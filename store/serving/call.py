"""One call of a client under way: who calls, what it may still do, and what it is charged for."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from store.domain.access import Access, Client
from store.domain.quota import Account
from store.serving.context import NodeContext
from store.serving.failure import CallFailure, Code, over_limit, unready
from store.serving.limits import MAX_REQUEST_ID_CHARS
from store.serving.unsent import Outlet

_SANE_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARS}}}")

REQUEST_IDS: Final = map(f"{secrets.token_hex(6)}-{{:x}}".format, itertools.count(1))
"""For calls whose callers give none."""


def is_request_id(given: str) -> bool:
    """True for a caller's ``x-request-id`` that is fit for a log."""
    return _SANE_REQUEST_ID.fullmatch(given) is not None


@dataclass(slots=True)
class Call:
    """One call under way; ``access`` are the rules by which it was let in last.

    ``identify`` tells anew who calls. ``largest_bytes``: what the method takes as a request.
    ``always``: it is served although the node is not ready.
    """

    node: NodeContext
    client: Client
    account: Account
    outlet: Outlet
    access: Access
    identify: Callable[[], Client]
    largest_bytes: int
    always: bool

    def check_rights(self) -> None:
        """Look again who calls, if the token file has changed.

        Raises:
            CallFailure: the topics of the caller are others now.
            Exception: what ``identify`` raises where it has no token any more.
        """
        access = self.node.tokens.access
        if access is self.access:
            return
        if self.identify().topics != self.client.topics:
            raise CallFailure(
                Code.UNAVAILABLE,
                f"the topics of client {self.client.name} have changed: call again",
                retry=True,
            )
        self.access = access

    def check_ready(self) -> None:
        """Raise `CallFailure` if the node serves no calls now."""
        reason = None if self.always else self.node.readiness.halted
        if reason is not None:
            raise unready(reason)

    def charge(self, size_bytes: int, *, counted: bool) -> None:
        """Charge one request; ``counted``: the beginning of the call has counted it.

        Raises:
            CallFailure: it is too large, or `check_rights` fails.
            Exceeded: too much was sent lately.
        """
        self.check_rights()
        largest = min(self.client.limits.request_bytes, self.largest_bytes)
        if size_bytes > largest:
            raise over_limit(f"the request has {size_bytes:,} bytes: at most {largest:,}")
        now_ns = self.node.monotonic_ns()
        if not counted:
            self.account.requests.take(1, now_ns)
        self.account.received.take(size_bytes, now_ns)

    def part(self, name: str, **attributes: int) -> AbstractContextManager[None]:
        """A part of the call, where calls are traced."""
        tracing = self.node.tracing
        return nullcontext() if tracing is None else tracing.within(name, **attributes)
