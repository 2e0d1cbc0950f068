"""The reason why a listener closes connections in clear at once: it speaks TLS."""

from __future__ import annotations

import asyncio
import ssl

from storenode.connection.channel import parse_address
from storenode.connection.limits import PROBE_TIMEOUT_S


async def speaks_tls(address: str) -> bool:
    """Return True if a TLS handshake succeeds at an address; nothing else is sent."""
    host, port = parse_address(address)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError:  # TimeoutError and ssl.SSLError are kinds of it
        return False
    writer.transport.abort()
    return True
