"""The errors that the client library and the SDS participant share."""


class StorenodeError(Exception):
    """The base of all errors that the library raises."""


class ArgumentError(StorenodeError, ValueError, TypeError):
    """An argument has a wrong type or value; the sentence says what to pass."""


class ClientClosed(StorenodeError):  # noqa: N818 - a public name
    """The client, stream or channel was closed: make a new one."""
