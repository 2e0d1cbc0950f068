"""multistream-select 1.0: the client proposes protocols until the gateway takes one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from store.gateway.faults import Fault
from store.gateway.limits import MAX_NEGOTIATION_BYTES, MAX_PROPOSALS
from store.gateway.reading import Pipe, Reader
from store.gateway.varints import delimited

MULTISTREAM: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"


async def negotiate(reader: Reader, pipe: Pipe, protocols: Collection[str]) -> str:
    """The first proposal that is one of ``protocols``.

    Raises:
        Fault: It is no negotiation, or nothing that was proposed is known.
        Ended: The client has gone.
    """
    if await _line(reader) != MULTISTREAM:
        raise Fault("malformed", "the client does not begin with /multistream/1.0.0")
    await pipe.send(_message(MULTISTREAM))
    for _ in range(MAX_PROPOSALS):
        proposal = await _line(reader)
        if proposal in protocols:
            await pipe.send(_message(proposal))
            return proposal
        await pipe.send(_message(_NOT_AVAILABLE))
    raise Fault("no_protocol", f"none of {MAX_PROPOSALS} proposed protocols is known")


async def _line(reader: Reader) -> str:
    line = await reader.delimited(MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise Fault("malformed", "a line of the negotiation has no end")
    return line[:-1].decode("utf-8", "replace")


def _message(text: str) -> bytes:
    return delimited(text.encode() + b"\n")
