"""Ctrl-C at any moment of the blocking client: it ends what it does, and the client goes on."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import FrameType

from storenode.client import Client, Message
from tests.support.node import NodeProcess

TIMEOUT_S = 120

PROGRAM = """
import random, signal, sys
from storenode.client import Client

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng, ended = random.Random(1), 0
with Client(sys.argv[1]) as client:
    for _ in range(100):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.01))
            with client.follow(sys.argv[2], from_beginning=True) as stream:
                for page in stream.pages():
                    pass
        except KeyboardInterrupt:
            ended += 1
    print(ended, [message.payload for message in client.scan(sys.argv[2])])
"""


def test_an_interruption_is_one_at_any_moment(node: NodeProcess, topic: str) -> None:
    with Client(node.listen) as client:
        client.publish(Message(b"held", topic))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, node.listen, topic],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "100 [b'held']\n"


def test_a_stream_that_is_dropped_runs_no_callback(node: NodeProcess, topic: str) -> None:
    # Python swallows an interruption that comes in one.
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with Client(node.listen) as client:
        client.publish(Message(b"held", topic))
        with client.follow(topic, from_beginning=True) as stream:
            assert next(stream).payload == b"held"
        gc.disable()  # a collection may run callbacks of other objects
        sys.setprofile(note)
        del stream
        sys.setprofile(None)
        gc.enable()
    assert called == []
