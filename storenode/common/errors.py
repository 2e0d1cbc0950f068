"""The errors that the client library and the SDS participant share."""


class StorenodeError(Exception):
    """The base of all errors that the library raises."""


class ArgumentError(StorenodeError, ValueError, TypeError):
    """An argument has a wrong type or value; the sentence says what to pass."""


class ClientClosedError(StorenodeError):
    """The client, stream or channel was closed: make a new one."""
