"""Why a connection or a stream ends before its time, and why the gateway does not start."""


class GatewayError(Exception):
    """The gateway cannot start or go on; one sentence that says what to do."""


class Fault(Exception):
    """Ends a stream, or the connection where it is not about one. ``reason`` labels the metrics."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Ended(Exception):
    """The other side has sent all that it will."""
