"""What a call of the client may raise besides a wrong argument; made where connections are."""

from storenode.connection.errors import ClientOptionError, NodeError

__all__ = ["ClientOptionError", "NodeError"]
