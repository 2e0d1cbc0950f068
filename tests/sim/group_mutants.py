"""Faults in SDS participants, in the core or around it: simulated groups must find each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf

from storenode.sds import channel
from storenode.sds.aio import ledger, saver
from storenode.sds.aio.events import Events
from storenode.sds.aio.feed import ChannelFeed
from storenode.sds.aio.ledger import ParticipantLedger
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.publisher import OutboxPublisher
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.transport import Rotation
from storenode.sds.bloom import RollingFilter
from storenode.sds.buffers import IncomingBuffer, OutgoingBuffer
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import IdClaims, Judgement, Proof
from storenode.sds.gaps import GapDetector, PeerGaps, _Lack
from storenode.sds.log import LogEntry, MessageLog
from storenode.sds.repair import RepairAnswers
from storenode.sds.schedule import Clock, FilterSchedule
from tests.sim.mutant import Mutant, asyncio_with, edit, nothing, replace_with, sleep_not, together

in_saver = partial(edit, Saver)
in_participant = partial(edit, Participant)
in_feed = partial(edit, ChannelFeed)
in_publisher = partial(edit, OutboxPublisher)
in_clock = partial(edit, Clock)

UNEQUAL = "do not become equal"


def _at_the_end(self: MessageLog, entry: LogEntry) -> int:
    _insert(self, entry)
    return 0


_insert = MessageLog.insert


_SWALLOWED = 10
"""So often that a participant does not leave, and the end of a run, which cancels twice as often,
leaves nothing to the garbage collector: that cannot end a task that swallows everything."""


async def _run_whatever_happens(self: ChannelFeed) -> None:
    for _ in range(_SWALLOWED):
        with suppress(asyncio.CancelledError):
            await _RUN(self)
    await _RUN(self)


_RUN = ChannelFeed.run

WITHOUT_STORE = {
    "never sends again": Mutant(
        replace_with(OutgoingBuffer, "due", lambda *_: ([], [])),
        "does not send .* again",
        first_seed=1,
    ),
    "never meets a dependency": Mutant(
        replace_with(IncomingBuffer, "met", nothing), "misses .* that it has", 1
    ),
    "takes waiting for met": Mutant(
        edit(
            IncomingBuffer,
            "add",
            "serial = self._next\n",
            "serial = self._next\n    waiting.unmet -= self.ids.keys()\n",
            "return list(",
            "if not waiting.unmet:\n        self.ready[serial] = None\n    return list(",
        ),
        "comes without .* causes|before its causes",
    ),
    "inserts at the end": Mutant(
        replace_with(MessageLog, "insert", _at_the_end), "at another place"
    ),
    "does not adopt clocks": Mutant(
        replace_with(Clock, "adopt", lambda *_: True), "before what it has"
    ),
    "adopts any clock": Mutant(
        in_clock("adopt", "min(lamport, now_ms + self.max_ahead_ms)", "lamport"), "ms ahead"
    ),
    "stops its timers with the clock": Mutant(
        in_clock(
            "running_ms",
            "running_ms = now_ms + self.set_back_ms",
            "self.latest_ms = running_ms = now_ms",
        ),
        "sleeps for|does not send .* again",
        first_seed=0,
    ),
    "is sure after one filter": Mutant(
        edit(
            OutgoingBuffer,
            "witness",
            "events.append(PossiblyAcknowledged(message_id, seen, outgoing.error))",
            "del self.by_id[message_id]\n            events.append(Acknowledged(message_id))",
        ),
        "acknowledged, and nobody has it",
    ),
    "answers what was answered": Mutant(
        replace_with(RepairAnswers, "seen", nothing), "nobody waits for that"
    ),
    "offers what nobody lacks": Mutant(
        edit(
            PeerGaps,
            "look",
            "offered.append(message_id)",
            "pass",
            "if entry.sender_id == sender_id:",
            "offered.append(message_id)\n        if entry.sender_id == sender_id:",
        ),
        "nobody waits for that",
    ),
    "never asks": Mutant(
        replace_with(IncomingBuffer, "_request_delay_ms", lambda *_: inf), UNEQUAL, 104
    ),
    "never looks for gaps of others": Mutant(
        replace_with(PeerGaps, "look", lambda *_: []), UNEQUAL, 10
    ),
    "never shows its filter": Mutant(replace_with(FilterSchedule, "_take", nothing), UNEQUAL, 15),
    "believes that a search has found all": Mutant(
        edit(
            _Lack,
            "explain",
            "self.fresh &= ~known",
            "known = -1 if self.searches else known\n    self.fresh &= ~known",
        ),
        "has caught up and lacks",
    ),
    "takes the first of an ID for genuine": Mutant(
        replace_with(IdClaims, "judge", lambda *_: Judgement.SAME), "keeps a forged message"
    ),
    "takes anything for proven": Mutant(
        replace_with(channel, "proof_of", lambda *_: Proof.MESSAGE),
        "taken for what it is not|keeps a forged message",
    ),
    "calls everything forged": Mutant(
        replace_with(IdClaims, "judge", lambda *_: Judgement.FORGED), "calls the genuine .* forged"
    ),
    "lets a forged message stay in its log": Mutant(
        replace_with(MessageLog, "remove", nothing),
        "log of .* is not what it was told|AssertionError",
        first_seed=36,
    ),
    "overlooks causes": Mutant(
        edit(
            MessageChannel,
            "_take",
            "content, message_id = message.content",
            "message = replace(message, history=message.history[:1])\n"
            "    content, message_id = message.content",
        ),
        "synced and lacks|comes without",
        first_seed=3,
    ),
    "keeps a forged message on disk": Mutant(
        replace_with(ParticipantLedger, "_withdrawn", nothing), "is written twice", first_seed=1
    ),
    "hands out events before they are saved": Mutant(
        in_saver(
            "add",
            "self._pending += things",
            "self._release(self._ledger.commits + 1, list(things))",
        ),
        "before it is saved",
    ),
    "takes a failed transaction for saved": Mutant(
        in_saver(
            "_commit",
            "self._troubled(error)\n",
            "self._troubled(error)\n            return\n",
        ),
        "before it is saved|does not go on|in use",
    ),
    "tries a transaction again without a pause": Mutant(
        replace_with(saver, "asyncio", asyncio_with("sleep", sleep_not)), "tries a transaction", 2
    ),
    "shows what is in the backlog again": Mutant(
        edit(Events, "put", "if commit > self.after_commit and not self._closed:", "if True:"),
        "twice|another place",
    ),
    "forgets who acknowledged": Mutant(
        edit(
            ParticipantLedger,
            "note",
            'self._update(event.message_id, "acknowledged_by", event.sender_id.encode())',
            "pass",
        ),
        "has forgotten who acknowledged",
    ),
    "gives up after a restart at once": Mutant(
        edit(
            ledger,
            "_missing_since_ms",
            "max(waiting.arrived_ms, earliest_ms)",
            "waiting.arrived_ms",
        ),
        "gives up after",
    ),
}

WITH_STORE = {
    "never rolls its filter over": Mutant(
        replace_with(RollingFilter, "_roll_over", nothing), "IDs are in one filter", 10
    ),
    "publishes before it saves": Mutant(
        in_participant(
            "send",
            "return sent_id",
            "self.publisher.offer(sent_id)\n    return sent_id",
        ),
        "leaves before it is saved",
    ),
    "forgets its outbox": Mutant(
        edit(ledger, "_fill", 'in state.rows("outbox")', "in ()"),
        "does not go on from its outbox",
        first_seed=1,
    ),
    "tries nodes again without a pause": Mutant(
        edit(Rotation, "failed", "if self._failures % len(self._links)", "if True"),
        "tries (Follow|Publish|Scan)",
        first_seed=1,
    ),
    "forgets its failures as soon as it is connected": Mutant(
        in_feed("_follow", "self.node = link", "self.node = self._rotation.worked() or link"),
        "tries (Follow|Scan)",
        40,
    ),
    "asks one node for ever": Mutant(
        together(
            replace_with(Rotation, "in_turn", lambda self: [self.link]),
            # Comparing filters heals what this leaves.
            replace_with(GapDetector, "look", nothing),
        ),
        UNEQUAL,
        124,
    ),
    "swallows cancellation": Mutant(
        replace_with(ChannelFeed, "run", _run_whatever_happens), "does not leave|has not left", 2
    ),
    "never opens a broken feed again": Mutant(
        in_feed("_failed", "asyncio.sleep(self._rotation.failed())", "asyncio.Event().wait()"),
        UNEQUAL,
        8,
    ),
    "advances its cursor before its messages are saved": Mutant(
        in_feed(
            "_read",
            "if page.messages:",
            "self._ledger.stand(link.name, page.cursor), self._participant.tell(())\n"
            "    await asyncio.sleep(0.1)\n    if page.messages:",
        ),
        "has a cursor past",
        4,
    ),
    "closes a gap before it is scanned": Mutant(
        in_feed("_close_gap", "self.live = False", "self.live = False\n    self._ledger.gap(None)"),
        "closes a gap",
        1,
    ),
    "leaves its feed running": Mutant(
        in_participant("_end", "saving, *others =", "saving, _, *others ="),
        "tasks are left|has not left",
        1,
    ),
    "loses the wake-up of its publisher": Mutant(
        in_publisher("offer", "self._news.set()", "pass"), "back|unpublished", 2
    ),
    "forgets what was under way": Mutant(
        in_publisher("_take_back", "is_ready = True", "is_ready = False"),
        "unpublished",
        1,
    ),
    "keeps every sync message": Mutant(
        in_publisher("offer_volatile", "if broadcast.reason is BroadcastReason.SYNC:", "if False:"),
        "sync messages wait",
        35,
    ),
}
