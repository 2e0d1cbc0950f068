"""A secret that peers without TLS share: proof that who calls, and who answers, knows it.

The secret does not travel. A caller sends a time, a nonce, and the HMAC-SHA256 of both, of the
method and of what it says of itself; the callee answers with an HMAC of that proof and of what it
says of itself. A proof serves once, and for a few minutes. Frames are not covered: who stands
between two nodes can read and change what they send in clear, and needs TLS to be kept out.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from storenode.message.limits import NS_PER_S

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4_096

MAX_AGE_NS: Final = 300 * NS_PER_S
"""By how much the clocks of two peers may differ, and for how long a nonce is remembered."""

MAX_NONCES: Final = 65_536
"""Nonces of proofs that are remembered; only who knows the secret can add one."""

_VERSION: Final = "1"
_NONCE_BYTES: Final = 16


class ProofError(Exception):
    """A proof that proves nothing; the text completes "the peer ..."."""


class PeerSecret:
    """Proofs under one secret; ``now_ns`` is the node's clock, in Unix nanoseconds."""

    def __init__(self, secret: bytes, now_ns: Callable[[], int]) -> None:
        self._secret = secret
        self._now_ns = now_ns
        self._nonces: dict[str, int] = {}

    def __repr__(self) -> str:
        """Nothing of the secret."""
        return "PeerSecret()"

    def prove(self, method: str, names: Sequence[str]) -> str:
        """A caller's proof, for one call of ``method`` with these metadata."""
        head = f"{_VERSION};{self._now_ns()};{secrets.token_hex(_NONCE_BYTES)}"
        return f"{head};{self._mac('call', head, method, *names)}"

    def check(self, proof: str, method: str, names: Sequence[str]) -> None:
        """Verify the proof of a caller, which can be used no more afterwards.

        Raises:
            ProofError: it is none, or old, or was used.
        """
        head, _, mac = proof.rpartition(";")
        if not _equal(mac, self._mac("call", head, method, *names)):
            raise ProofError(
                "does not prove that it knows the secret of --peer-secret-file: give both nodes "
                "the same"
            )
        _, time_ns, nonce = head.split(";")
        now_ns = self._now_ns()
        if abs(now_ns - int(time_ns)) > MAX_AGE_NS:
            raise ProofError(
                f"gives a proof that is {abs(now_ns - int(time_ns)) // NS_PER_S} s from this "
                "node's time: correct the clock of one of the two"
            )
        self._remember(nonce, now_ns)

    def answer(self, proof: str, names: Sequence[str]) -> str:
        """The callee's proof, as an answer to the caller's."""
        return self._mac("answer", proof, *names)

    def answers(self, answer: str, proof: str, names: Sequence[str]) -> bool:
        """Is this the answer to a proof of a callee with these metadata?"""
        return _equal(answer, self.answer(proof, names))

    def _remember(self, nonce: str, now_ns: int) -> None:
        if nonce in self._nonces:
            raise ProofError("gives a proof that was used before: make one for each call")
        # In order of arrival; a proof may be as much ahead of this node's clock as behind it.
        while self._nonces and next(iter(self._nonces.values())) < now_ns - 2 * MAX_AGE_NS:
            del self._nonces[next(iter(self._nonces))]
        if len(self._nonces) >= MAX_NONCES:
            raise ProofError(f"comes after {MAX_NONCES:,} calls within minutes: call less often")
        self._nonces[nonce] = now_ns

    def _mac(self, *fields: str) -> str:
        # No field of a valid proof has a zero byte: what is joined can be taken apart in one way.
        text = "\0".join(("storenode peer", *fields))
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
