"""Errors that end a connection or a stream, and the error of a gateway that cannot start.

Whatever reads from or sends to the other side raises `RefusalError` when that breaks a rule or a
limit, `StreamEndedError` when it has gone, and other errors of the system, such as `TimeoutError`.
"""


class GatewayError(Exception):
    """The gateway cannot start or continue; one sentence that says what to do."""


class RefusalError(Exception):
    """Ends a stream, or the connection where it is not about one. ``reason`` labels the metrics."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class StatusError(Exception):
    """The answer to a request is a failure; ``status_code`` is one of HTTP's, as Waku has it."""

    def __init__(self, status_code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status_code = status_code


class StreamEndedError(ConnectionError):
    """The other side has sent all that it will, or gave the stream up."""
