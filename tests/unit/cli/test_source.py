import asyncio
import os
import warnings

from storenode.cli.client import source


def test_input_that_comes_after_the_end_leaves_no_warning() -> None:
    loop = asyncio.new_event_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    loop.close()
    out, into = os.pipe()
    os.write(into, b"late")
    os.close(into)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source._pump(out, loop, queue)
    finally:
        os.close(out)
    assert [str(each.message) for each in caught] == []
    assert queue.empty()
