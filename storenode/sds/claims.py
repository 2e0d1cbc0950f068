"""The message that an ID belongs to, where several claim it.

An ID that is a hash of the message proves that the message is the one that the ID was made for: it
is *proven*. Any other ID is a claim, which others can make too. A proven message takes
the place of one that is not, whichever came first; what else claims its ID is forged. Between two
that are not proven there is no decision: the first stays, and the second is reported nevertheless.

| known under the ID      | another that is proven    | another that is not                    |
|-------------------------|---------------------------|----------------------------------------|
| proven                  | the same message          | forged                                 |
| not proven, sent by us  | forged                    | forged, unless it is the same message  |
| not proven              | takes its place           | forged, unless it is the same message  |
| not proven, long ago    | not judged                | not judged                             |

"Long ago": more than `MAX_UNPROVEN` messages that are not proven came since.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

from storenode.common.bounded_dict import BoundedDict
from storenode.sds.codec import SdsMessage
from storenode.sds.limits import MAX_FORGERIES_REPORTED, MAX_UNPROVEN
from storenode.sds.proofs import content_id, proves_content

_DIGEST_BYTES: Final = 16


class Proof(Enum):
    """The kind of proof in a message's ID; the value is how it is stored."""

    NONE = ""
    """An ID that cannot be recomputed."""

    CONTENT = "content"
    """An ID that is the SHA-256 of the content, as `@waku/sds` makes it: the content is genuine,
    while sender, clock and history are unproven. Those of the first deliverable copy count
    (`storenode.sds.channel`)."""

    MESSAGE = "message"
    """An ID that covers channel, sender, clock, history and content (`storenode.sds.proofs`)."""

    OWN = "own"
    """An ID that cannot be recomputed, of a message that this participant sent."""

    def __bool__(self) -> bool:
        return self is not Proof.NONE


class Judgement(Enum):
    """The decision about a message whose ID is known."""

    SAME = "same"
    FORGED = "forged"
    GENUINE = "genuine"


@dataclass(frozen=True, slots=True)
class Unproven:
    """The digest of an unproven message; ``own``: this participant sent it."""

    lamport: int
    digest: bytes
    own: bool = False


def proof_of(message: SdsMessage) -> Proof:
    """Recompute the ID of a message with content."""
    content, claimed = message.content or b"", message.message_id
    sender, lamport = message.sender_id, message.lamport or 0
    if claimed == content_id(message.channel_id, sender, lamport, message.history, content):
        return Proof.MESSAGE
    return Proof.CONTENT if proves_content(claimed, content) else Proof.NONE


def said_by(message: SdsMessage, *, own: bool = False) -> Unproven:
    """Return a digest of a message, which differs from that of another one with its ID."""
    sender, lamport = message.sender_id.encode(), message.lamport or 0
    covered = len(sender).to_bytes(4) + sender + lamport.to_bytes(8) + (message.content or b"")
    return Unproven(lamport, blake2b(covered, digest_size=_DIGEST_BYTES).digest(), own)


class IdClaims:
    """The messages in the log and the incoming buffer that are not proven.

    Attributes:
        unproven: the newest of them.
        older: digests of the IDs of those before.
    """

    def __init__(self, digest: Callable[[str], bytes]) -> None:
        self._digest = digest
        self.unproven: OrderedDict[str, Unproven] = OrderedDict()
        self.older: set[bytes] = set()
        self._reported = BoundedDict[tuple[str, bytes], None](MAX_FORGERIES_REPORTED)

    def add(self, message_id: str, unproven: Unproven) -> None:
        """Add a message that is not proven."""
        self.unproven[message_id] = unproven
        if len(self.unproven) > MAX_UNPROVEN:
            self.older.add(self._digest(self.unproven.popitem(last=False)[0]))

    def judge(self, message: SdsMessage) -> Judgement:
        """Compare a message with what is known under its ID."""
        message_id = message.message_id
        known = self.unproven.get(message_id)
        if known is None and self._digest(message_id) in self.older:
            return Judgement.SAME
        if known is not None and said_by(message).digest == known.digest:
            return Judgement.SAME
        proven = bool(proof_of(message))
        if known is None:
            return Judgement.SAME if proven else Judgement.FORGED
        return Judgement.GENUINE if proven and not known.own else Judgement.FORGED

    def is_certain(self, message_id: str) -> bool:
        """Return True if the message that is known under an ID is the genuine one."""
        known = self.unproven.get(message_id)
        return known is None or known.own

    def withdraw(self, message_id: str) -> int:
        """Remove the forged message of an ID, and return its clock."""
        forged = self.unproven.pop(message_id)
        self.is_news(message_id, forged)
        return forged.lamport

    def is_news(self, message_id: str, forged: Unproven) -> bool:
        """Return True if a forged message was not reported lately; now it is."""
        key = message_id, forged.digest
        if key in self._reported:
            return False
        self._reported[key] = None
        return True
