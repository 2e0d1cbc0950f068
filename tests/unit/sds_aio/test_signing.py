"""Signatures by the application: made, passed through, verified, and ignored by others."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import replace
from pathlib import Path
from random import Random
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Message
from storenode.sds.aio.signing import Signing, unframe
from storenode.sds.aio.transport import Fetched, Route
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Broadcast, Signed
from storenode.sds.limits import MAX_SIGNATURE_BYTES
from storenode.sds.proofs import canonical, content_id
from tests.support.bus import Bus, BusTransport
from tests.unit.sds_aio.test_bus import Reversing, has

PATIENCE_S = 60.0
KEYS = {"alice": b"key of alice", "bob": b"key of bob"}
MARK = b"\x00sds-sig"
ROUTE = Route("0", "/waku/2/rs/1/0", "/sds/1/0/proto")


class Keys:
    """Signs with a secret that all know, which is enough to tell whose it is here."""

    def __init__(self, own: str) -> None:
        self._own = own

    def sign(self, canonical: bytes) -> bytes:
        return hmac.digest(KEYS[self._own], canonical, "sha256")

    def verify(self, canonical: bytes, signature: bytes, sender_id: str) -> bool:
        return hmac.compare_digest(hmac.digest(KEYS[sender_id], canonical, "sha256"), signature)


def joined(transport: BusTransport, sender: str, **more: Any) -> Any:  # noqa: ANN401
    return Channel.join(transport, sender_id=sender, **more)


async def log_of(channel: Channel, count: int) -> list[Message]:
    await has(channel, count)
    return await channel.log()


def seen(messages: list[Message]) -> list[tuple[bytes, Signed]]:
    return [(each.content, each.signed) for each in messages]


@pytest.mark.parametrize("cipher", [None, Reversing(whole=False), Reversing(whole=True)])
async def test_a_signature_is_verified_also_after_a_restart_and_passed_through_without_signer(
    tmp_path: Path, cipher: Reversing | None
) -> None:
    bus, path = Bus(), tmp_path / "bob.db"
    async with (
        joined(bus.transport("a"), "alice", signer=Keys("alice"), cipher=cipher) as alice,
        joined(bus.transport("c"), "carol", cipher=cipher) as carol,
    ):
        async with joined(
            bus.transport("b"), "bob", signer=Keys("bob"), cipher=cipher, state=path
        ) as bob:
            live = bob.messages()
            await alice.send(b"signed")
            first = await asyncio.wait_for(anext(live), PATIENCE_S)
            await live.aclose()
            assert seen([first]) == [(b"signed", Signed.VALID)]
            assert first.proof is Proof.MESSAGE
            await bob.send(b"by bob")
        (own, others) = await log_of(alice, 2)
        assert seen([own, others]) == [(b"signed", Signed.VALID), (b"by bob", Signed.VALID)]
        passed = await log_of(carol, 2)
        assert seen(passed) == [(b"signed", Signed.UNCHECKED), (b"by bob", Signed.UNCHECKED)]
        assert [each.signature for each in passed] == [own.signature, others.signature]
        await carol.send(b"plain")
        assert seen(await log_of(alice, 3))[2] == (b"plain", Signed.NO)
    async with joined(
        bus.transport("b"), "bob", signer=Keys("bob"), cipher=cipher, state=path
    ) as bob:
        assert seen(await log_of(bob, 3))[0] == (b"signed", Signed.VALID)


async def test_a_signature_does_not_hold_for_another_message_sender_or_channel() -> None:
    """Publish forgeries that another sender can make of a signed message."""
    bus, rng, now_ms = Bus(), Random(1), time_ns() // 1_000_000
    signing = Signing(Keys("alice"), "0", "alice")
    alice = MessageChannel(ChannelConfig(sender_id="alice"), now_ms, rng)
    sent = alice.send(
        now_ms, b"pay 5", sealed=lambda lamport, history: signing.frame(b"pay 5", lamport, history)
    )[0]
    assert isinstance(sent, Broadcast)
    genuine = decode_message(sent.payload)
    content = genuine.content or b""
    clear, signature = unframe(content)
    more = clear.replace(b"5", b"50") + content.removeprefix(clear)
    forged = [
        replace(genuine, message_id="later", lamport=(genuine.lamport or 0) + 1),
        replace(genuine, message_id="by bob", sender_id="bob"),
        replace(genuine, message_id="other", content=more),
        replace(genuine, message_id="unknown", sender_id="nobody with a key"),
    ]
    copy = replace(genuine, message_id="copy")
    for number, message in enumerate((genuine, copy, *forged)):
        bus.add(ROUTE, Fetched(encode_message(message), b"%d" % number, time_ns()))
    async with joined(bus.transport("b"), "bob", signer=Keys("bob")) as bob:
        log = {each.message_id: each for each in await log_of(bob, 6)}
    assert {log[each.message_id].signed for each in forged} == {Signed.INVALID}
    found = log[genuine.message_id]
    assert (found.content, found.signature, found.signed) == (b"pay 5", signature, Signed.VALID)
    # The same once more: the signature holds, and the ID does not.
    assert (log["copy"].signed, log["copy"].proof) == (Signed.VALID, Proof.NONE)
    assert found.proof is Proof.MESSAGE


def test_the_canonical_bytes_are_those_of_the_id_under_another_name() -> None:
    made = canonical("room", "alice", 7, (), b"text")
    assert made == b"".join(
        len(part).to_bytes(4) + part
        for part in (b"sds.v1.signed", b"room", b"alice", b"7", b"", b"text")
    )
    assert content_id("room", "alice", 7, (), made) != content_id("room", "alice", 7, (), b"text")


def test_any_content_comes_back_as_it_was_given() -> None:
    plain = Signing(None, "0", "alice")
    rng = Random(2)
    signatures = [b"", b"s", bytes(MAX_SIGNATURE_BYTES)]
    contents = [b"x", b"x" + MARK, b"\x00\x01" + MARK, MARK, b"xs\x00\x01" + MARK]
    contents += [rng.randbytes(rng.randrange(1, 40)) + MARK for _ in range(200)]
    for content in contents:
        opened = plain.read(Message("m", "alice", 1, plain.frame(content, 1, ())))
        assert (opened.content, opened.signed) == (content, Signed.NO)
    for content in contents:
        for signature in signatures:
            framed = content + signature + len(signature).to_bytes(2) + MARK
            assert unframe(framed) == (content, signature)


@pytest.mark.parametrize(
    "hostile",
    [
        MARK,
        b"\x00\x00" + MARK,
        b"x\xff\xff" + MARK,
        b"ab\x00\x02" + MARK,
        b"x" * 9_000 + (MAX_SIGNATURE_BYTES + 1).to_bytes(2) + MARK,
    ],
)
def test_what_only_looks_like_a_signature_is_content(hostile: bytes) -> None:
    assert unframe(hostile) == (hostile, b"")


async def test_a_signature_that_is_too_long_is_refused_to_its_sender() -> None:
    keys = Keys("alice")
    signer = SimpleNamespace(sign=lambda _: bytes(MAX_SIGNATURE_BYTES + 1), verify=keys.verify)
    async with joined(Bus().transport("a"), "alice", signer=signer) as alice:
        with pytest.raises(ValueError, match=r"a signature has \d+ bytes: 8192 are the most"):
            await alice.send(b"text")
        assert await alice.log() == []
