"""Errors in payloads, sessions and the summaries of a view."""


class MalformedPayloadError(ValueError):
    """Bytes that are no ``RangesData`` payload.

    Attributes:
        offset: where in the payload, in bytes from its beginning.
        what: the fault there, as the beginning of a sentence.
    """

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(
            f"{what} at byte {offset} of the payload: send RangesData as WAKU-SYNC encodes it"
        )
        self.offset = offset
        self.what = what


class MalformedCompactError(MalformedPayloadError):
    """Bytes that are no frame of the compact mode, or none that may come now."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(offset, what)
        self.args = (f"{what} at byte {offset} of a compact frame: see docs/spec/compact.md",)


class PayloadLimitError(ValueError):
    """A payload that is well-formed as far as it was read, but larger than this node allows.

    Attributes:
        limit: name of the limit, as in ``CodecLimits``.
        allowed: its value.
        claimed: the number that the payload has or claims.
    """

    def __init__(self, limit: str, allowed: int, claimed: int) -> None:
        what = limit.removeprefix("max_").replace("_", " ")
        super().__init__(
            f"a payload may have {allowed} {what} and this one has {claimed}: send less at a time"
        )
        self.limit = limit
        self.allowed = allowed
        self.claimed = claimed


class SessionLimitError(PayloadLimitError):
    """A session that lasts for longer than this node allows.

    Attributes:
        limit: name of the limit, as in ``SessionLimits``.
        allowed: its value.
        claimed: the number that the session has reached.
    """

    def __init__(self, limit: str, allowed: int, claimed: int) -> None:
        super().__init__(limit, allowed, claimed)
        what = limit.removeprefix("max_").replace("_", " ")
        sentence = (
            f"a session may have {allowed} {what} and this one has come to {claimed}: begin a new"
            " one, over a shorter window"
        )
        self.args = (sentence,)


class SummaryMismatchError(ValueError):
    """Summaries of a range of time that contradict each other, or the IDs that they summarize.

    Attributes:
        start_ns: where that range begins.
        end_ns: where it ends.
    """

    def __init__(self, start_ns: int, end_ns: int) -> None:
        super().__init__(
            f"the summaries from {start_ns} to {end_ns} ns do not match the messages there: run"
            " `storenode db check`, which says how to make them anew"
        )
        self.start_ns = start_ns
        self.end_ns = end_ns


class AnswerTooLargeError(ValueError):
    """A read that asks for more IDs at a time than a view reads.

    Attributes:
        allowed: how many it reads.
    """

    def __init__(self, allowed: int) -> None:
        super().__init__(f"a read asks for more than {allowed} IDs: measure before reading items")
        self.allowed = allowed
