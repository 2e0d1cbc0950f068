"""Faults in the gossipsub router and in reconciliation with nwaku: the simulator must find each."""

from __future__ import annotations

from functools import partial

from store.gateway import sync_codec
from store.gateway.gossipsub import Router, SeenMessages
from store.gateway.sync_session import MessageIds, SyncSession
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
        in_router("join", "self._stay_quiet(topic, key, QUIET_S)", "pass"),
        "which remembers an earlier stream",
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
        in_router("_forget", "len(self._history) == CACHE_HEARTBEATS", "False"), KEPT
    ),
    "a peer that left stays in the mesh": Mutant(
        replace_with(Router, "leave", lambda self, key: self._peers.pop(key, None)),
        "AssertionError|KeyError",
    ),
    "refusals in advance have no limit": Mutant(
        in_router("_take_control", "rpc.idontwant[: max(0, room)]", "rpc.idontwant"),
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
        in_router("_take_control", "self._request(key, peer, rpc)", "pass"), LOST
    ),
    "an announcement holds those of other peers back": Mutant(
        in_router(
            "_request", "key in self._promises.get(message_id, ())", "message_id in self._promises"
        ),
        LOST,
        first_seed=2,
    ),
    "requested messages are not sent": Mutant(
        in_router("_serve", "message is not None and", "False and"), LOST
    ),
    "relayed messages are not kept for requests": Mutant(
        in_router("accept", "self._keep(message)", "pass"), LOST
    ),
}

in_session = partial(edit, SyncSession)
in_ids = partial(edit, MessageIds)

DIFFERENCES = "differences"
UNEQUAL = f"{DIFFERENCES}|do not become equal"

SYNC_MUTANTS = {
    "a range of few nanoseconds begins with a fingerprint": Mutant(
        in_session("begin", "if whole.upper_ns - whole.lower_ns < PARTS:", "if False:"),
        UNEQUAL,
        first_seed=14,
    ),
    "a part of few nanoseconds has a fingerprint": Mutant(
        in_session("_show", "if end_ns - low_ns < PARTS or", "if"), UNEQUAL, first_seed=7
    ),
    "the IDs of a range include its upper bound": Mutant(
        in_ids(
            "_places",
            "np.searchsorted(self._timestamps, (low_ns, high_ns)).tolist()",
            "(int(np.searchsorted(self._timestamps, low_ns)),"
            " int(np.searchsorted(self._timestamps, high_ns, 'right')))",
        ),
        f"{UNEQUAL}|outside of the window|AssertionError",
        first_seed=3,
    ),
    "a fingerprint covers a part of the hashes": Mutant(
        in_ids("fingerprint", "bytes(self._", "bytes(24) + bytes(self._"), UNEQUAL, first_seed=6
    ),
    "one ID is forgotten": Mutant(
        in_session("_answer_items", "self.to_send.update(lacking)", "self.to_send |= set(own[1:])"),
        UNEQUAL,
    ),
    "an item set is never answered by the own": Mutant(
        in_session(
            "_answer_items", "if theirs.reconciled or not (lacking or unknown):", "if True:"
        ),
        UNEQUAL,
    ),
    "an item set says that it needs no answer": Mutant(
        in_session("_item_set", "reconciled=not items", "reconciled=True"), UNEQUAL
    ),
    "reconciled item sets are answered too": Mutant(
        in_session("_answer_items", "theirs.reconciled or ", ""),
        f"does not end|{UNEQUAL}",
        first_seed=1,
    ),
    "equal fingerprints are divided on": Mutant(
        in_session("_answer", "self._ids.fingerprint(low_ns, high_ns) == asked.content", "False"),
        f"{DIFFERENCES} take|{UNEQUAL}",
        first_seed=10,
    ),
    "all IDs are listed": Mutant(
        in_session("_show", "self._ids.count(low_ns, high_ns) <= MAX_ITEMS", "True"),
        f"{DIFFERENCES} take",
        first_seed=53,
    ),
    "the window of the session is ignored": Mutant(
        in_session(
            "_answer",
            "min(max(asked.lower_ns, self._low_ns), asked.upper_ns)",
            "asked.lower_ns",
            "max(min(asked.upper_ns, self.high_ns), low_ns)",
            "asked.upper_ns",
        ),
        "outside of the window",
        first_seed=3,
    ),
    "the end of a session is not noticed": Mutant(
        in_session("receive", "self.has_ended = encoded == NO_RANGES", "pass"),
        "does not notice the end",
    ),
    "times are not differences": Mutant(
        edit(sync_codec, "_encode_items", "before_ns = at_ns", "pass"),
        f"{UNEQUAL}|PayloadError",
        first_seed=1,
    ),
    "a liar is sent what it asks for again": Mutant(
        in_session(
            "_answer_items",
            "self.to_send.update(lacking)",
            "self.to_send = [*self.to_send, *lacking]",
        ),
        "gets messages twice",
        first_seed=1,
    ),
    "a Skip swallows what follows it": Mutant(
        in_session(
            "receive",
            "answer.content is None is answers[-1].content",
            "answers[-1].content is None",
        ),
        f"{UNEQUAL}|AssertionError",
    ),
    "messages are sorted by hash alone": Mutant(
        in_ids("__init__", "np.lexsort((*words.T[::-1], timestamps))", "np.lexsort(words.T[::-1])"),
        f"{UNEQUAL}|AssertionError|PayloadError",
        first_seed=32,
    ),
}
