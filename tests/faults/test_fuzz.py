"""A short run of the fuzzer, and one that finds a planted fault."""

from __future__ import annotations

import sys
from collections.abc import Callable

from chaos.fuzz.__main__ import fuzz

PLANTED = """
import sys
from store.serving.methods import reads
from storenode.cli.main import main

sound = reads.query

async def query(call, request):
    if len(request) % 7 == 3:
        raise ZeroDivisionError
    return await sound(call, request)

reads.query = query
sys.argv[0] = "storenode"
main()
"""


async def test_no_request_breaks_a_node(new_store: Callable[[], str]) -> None:
    result = await fuzz(1_500, "a test", options=("--database-url", new_store()))
    assert result.faults == []
    assert result.requests >= 1_500
    # Else the requests would not reach what lies behind the checks.
    assert result.codes["OK"] > 100


async def test_a_planted_fault_is_reported(new_store: Callable[[], str]) -> None:
    program, options = (sys.executable, "-c", PLANTED), ("--database-url", new_store())
    result = await fuzz(500, "a test", ["Store/Query"], program, options)
    assert any("/storenode.v1.Store/Query ended INTERNAL" in each for each in result.faults)
    assert any("ZeroDivisionError" in each for each in result.faults)
