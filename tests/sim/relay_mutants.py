"""Faults in the gossipsub router: the simulator must find each."""

from __future__ import annotations

from functools import partial

from store.gateway.gossipsub import Router, SeenMessages
from tests.sim.mutant import Mutant, edit, replace_with

in_router = partial(edit, Router)

LOST = "a message does not reach"
KEPT = "still keeps what is long over|AssertionError"

RELAY_MUTANTS = {
    "messages are not remembered": Mutant(
        edit(SeenMessages, "add", "return False", "return True"), "accepts a message twice"
    ),
    "messages are remembered for a moment": Mutant(
        edit(SeenMessages, "forget", "- SEEN_S", "- 2"), "accepts a message twice"
    ),
    "a signed message hides the genuine one": Mutant(
        in_router(
            "_take_message",
            "if message.is_signed:",
            "if message.is_signed and self._seen.add((message.message_id, message.topic), 0):",
        ),
        LOST,
        first_seed=13,
    ),
    "signed messages are free": Mutant(
        in_router("_take_message", "self._punish(key, REJECTED_PENALTY,", "str("),
        "never disconnected for sign",
        first_seed=8,
    ),
    "messages are forwarded before they are judged": Mutant(
        in_router(
            "_take_message",
            "self._effects.append(Arrived(key, message))",
            "self._effects.append(Arrived(key, message)); self._keep(message);"
            " self._forward(message, self._receivers(message.topic), key)",
        ),
        "forwards what was never published",
        first_seed=2,
    ),
    "a message goes back to where it came from": Mutant(
        in_router("_forward", "key != source and ", ""), "sends a message back"
    ),
    "a peer is grafted at once": Mutant(
        in_router("_may_graft", "not self._peers[key].is_new(self._now_s)", "True"),
        "which remembers an old stream",
    ),
    "the back-off of a peer is ignored": Mutant(
        in_router("_take_control", "self._back_off(prune.topic, key, backoff_s)", "pass"),
        "within the back-off|never disconnected for graft",
        first_seed=22,
    ),
    "an early GRAFT is free": Mutant(
        in_router("_take_graft", "if is_early:", "if False:"),
        "never disconnected for graft",
        first_seed=29,
    ),
    "a peer is asked for everything that it announces": Mutant(
        in_router("_request", "peer.requested >= MAX_IWANT_PER_HEARTBEAT", "False"),
        "asks x. for too many messages|AssertionError",
        first_seed=9,
    ),
    "a broken promise is free": Mutant(
        in_router("_forget", "self._punish(key, MALFORMED_PENALTY,", "str("),
        "never disconnected for announce",
        first_seed=9,
    ),
    "promises are kept for ever": Mutant(
        in_router("_forget", "if until_s < self._now_s]", "if False]"),
        f"{KEPT}|never disconnected for announce",
        first_seed=8,
    ),
    "messages are served without end": Mutant(
        in_router("_serve", "count < MAX_SERVED and ", ""), "without end", first_seed=14
    ),
    "the cache of messages is never emptied": Mutant(
        in_router("_forget", "if at_s < oldest_s]", "if False]"), KEPT
    ),
    "a peer that left stays in the mesh": Mutant(
        replace_with(Router, "leave", lambda self, key: self._peers.pop(key, None)),
        "AssertionError|KeyError",
    ),
    "refusals in advance have no limit": Mutant(
        in_router("_take_control", "[: max(0, room)]", ""),
        "AssertionError",
        first_seed=2,
    ),
    "penalties do not decay": Mutant(
        in_router("_forget", "penalty * DECAY", "penalty"), f"{KEPT}|the honest", first_seed=3
    ),
    "a leaf announces and grafts": Mutant(
        in_router("heartbeat", "if self._forwards:", "if True:"), "the leaf r. sends messages"
    ),
}

RECOVERY_MUTANTS = {
    "messages are not announced": Mutant(
        in_router("_gossip", "if ids and others:", "if False:"), LOST
    ),
    "announced messages are not requested": Mutant(
        in_router("_take_control", "self._request(key, peer, control)", "pass"), LOST
    ),
    "an announcement holds those of other peers back": Mutant(
        in_router(
            "_request", "key in self._promises.get(message_id, ())", "message_id in self._promises"
        ),
        LOST,
        first_seed=2,
    ),
    "requested messages are not sent": Mutant(
        in_router("_serve", "cached is not None and", "False and"), LOST
    ),
    "relayed messages are not kept for requests": Mutant(
        in_router("accept", "self._keep(message)", "pass"), LOST
    ),
}
