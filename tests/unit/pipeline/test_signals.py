"""Ctrl-C and SIGTERM end a block by an exception, and quietly."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from store.pipeline.spark import TerminatedError, ended_by_signals, interrupt_here


def test_both_signals_are_exceptions_within_the_block_only() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(TerminatedError), ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        interrupted_after_a_library_took_the_signal()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def interrupted_after_a_library_took_the_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_here()
    os.kill(os.getpid(), signal.SIGINT)


def test_what_py4j_says_of_it_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with ended_by_signals():
        logging.getLogger().error("KeyboardInterrupt while sending command.")
        logging.getLogger().error("something else")
    assert caplog.messages == ["something else"]
