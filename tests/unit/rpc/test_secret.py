"""What a proof of a peer's secret proves, and what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.rpc import secret
from store.rpc.secret import MAX_AGE_NS, PeerSecret, ProofError

NOW_NS = 1_800_000_000 * 10**9
NAMES = ("a.example", "store-a", "1.0")
OTHERS = ("b.example", "store-b", "1.0")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mine(clock: Clock) -> PeerSecret:
    return PeerSecret(b"sixteen bytes or", clock)


@pytest.fixture
def theirs(clock: Clock) -> PeerSecret:
    return PeerSecret(b"sixteen bytes or", clock)


def test_both_sides_prove_that_they_know_the_secret(mine: PeerSecret, theirs: PeerSecret) -> None:
    proof = mine.prove("Reconcile", NAMES)
    theirs.check(proof, "Reconcile", NAMES)
    answer = theirs.answer(proof, OTHERS)
    assert mine.answers(answer, proof, OTHERS)
    assert not mine.answers(answer, proof, NAMES), "it is another node's"
    assert not mine.answers(answer, mine.prove("Reconcile", NAMES), OTHERS), "it is another call's"
    assert "sixteen" not in repr(mine) + proof + answer


def test_a_proof_serves_once(mine: PeerSecret, theirs: PeerSecret) -> None:
    proof = mine.prove("Gossip", NAMES)
    theirs.check(proof, "Gossip", NAMES)
    with pytest.raises(ProofError, match="used before"):
        theirs.check(proof, "Gossip", NAMES)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("Transfer", NAMES),
        ("Reconcile", OTHERS),
        ("Reconcile", ("a.example", "store-b", "1.0")),
        ("Reconcile", ("a.example", "store-a", "1.1")),
    ],
)
def test_a_proof_is_of_one_call(
    mine: PeerSecret, theirs: PeerSecret, method: str, names: tuple[str, str, str]
) -> None:
    with pytest.raises(ProofError, match="does not prove"):
        theirs.check(mine.prove("Reconcile", NAMES), method, names)


@given(st.integers(0, 10_000), st.characters(codec="utf-8"))
def test_a_proof_that_was_changed_proves_nothing(somewhere: int, letter: str) -> None:
    mine, theirs = (PeerSecret(b"sixteen bytes or", lambda: NOW_NS) for _ in range(2))
    proof = mine.prove("Scan", NAMES)
    place = somewhere % len(proof)
    changed = {proof[:place] + letter + proof[place + 1 :], proof[:place], proof + letter}
    for each in changed - {proof}:
        with pytest.raises(ProofError, match="does not prove"):
            theirs.check(each, "Scan", NAMES)


def test_who_knows_another_secret_or_none_proves_nothing(mine: PeerSecret, clock: Clock) -> None:
    for proof in ("", ";;;", PeerSecret(b"another secret, long", clock).prove("Scan", NAMES)):
        with pytest.raises(ProofError, match="does not prove"):
            mine.check(proof, "Scan", NAMES)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_proof_is_good_for_minutes(
    mine: PeerSecret, theirs: PeerSecret, clock: Clock, sign: int
) -> None:
    proofs = [mine.prove("Scan", NAMES) for _ in range(2)]
    clock.now_ns += sign * MAX_AGE_NS
    theirs.check(proofs[0], "Scan", NAMES)
    clock.now_ns += sign
    with pytest.raises(ProofError, match="300 s from this node's time"):
        theirs.check(proofs[1], "Scan", NAMES)


def test_what_is_remembered_is_bounded(
    mine: PeerSecret, theirs: PeerSecret, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "MAX_NONCES", 3)
    for _ in range(3):
        theirs.check(mine.prove("Scan", NAMES), "Scan", NAMES)
    with pytest.raises(ProofError, match="call less often"):
        theirs.check(mine.prove("Scan", NAMES), "Scan", NAMES)
    clock.now_ns += 2 * MAX_AGE_NS + 1
    theirs.check(mine.prove("Scan", NAMES), "Scan", NAMES)
