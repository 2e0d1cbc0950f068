"""The end of a client command by Ctrl-C, also at a bad moment."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from storenode.cli.client.session import run_session
from storenode.cli.errors import OK

BEFORE_SLEEP_S = 0.05
"""Time in which the event loop falls asleep; a slower one is interrupted while awake."""

GIVE_UP_S = 20.0


@pytest.mark.parametrize("interrupt_ends", [False, True])
def test_a_signal_that_does_not_wake_the_thread_ends_the_session(*, interrupt_ends: bool) -> None:
    # As one that comes just before the event loop sleeps: this one goes to another thread.
    ends: list[str] = []

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def wait() -> int:
        timer = threading.Timer(BEFORE_SLEEP_S, interrupt)
        timer.start()
        # Runs if the event loop does not wake before.
        asyncio.get_running_loop().call_later(GIVE_UP_S, ends.append, "given up")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        finally:
            timer.join()
        return OK

    if interrupt_ends:
        assert run_session(wait(), interrupt_ends=True) == OK
    else:
        with pytest.raises(KeyboardInterrupt):
            run_session(wait(), interrupt_ends=False)
    assert ends == ["cancelled"]
