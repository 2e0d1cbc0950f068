"""A further protocol between nodes is one more service of each process."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from sim.calls import Closed, End, Ended
from sim.cores import Cores
from sim.process import Handler, Process
from sim.run import simulate
from sim.tasks import Steps, Task


class Rumours:
    """Tells each peer of every commit, over a call of its own; what is lost is lost."""

    heard: list[int]

    def __init__(self, process: Process) -> None:
        self._process = process
        self._untold = 0

    def methods(self) -> Mapping[str, Handler]:
        return {"Rumour": self._listen}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        return {}

    def start(self) -> None:
        followers = self._process.database.followers
        followers.append(self._count)
        self._process.at_end.append(lambda: followers.remove(self._count))
        self._process.spawn("rumour", self._tell())

    def check(self) -> None:
        assert self._untold >= 0

    def _count(self, _: int, ids: list[Any]) -> None:
        self._untold += len(ids)

    def _listen(self, end: End, _: Task) -> Steps[None]:
        while not isinstance(frame := (yield from end.read().wait()), Ended):
            Rumours.heard.append(frame)
        end.finish()

    def _tell(self) -> Steps[None]:
        process = self._process
        while True:
            yield from process.sleep(10**9)
            for peer in process.node.peers if self._untold else ():
                try:
                    end = yield from process.network.call(
                        process.name, peer.host, "Rumour", process.identity
                    )
                    yield from end.send(self._untold).wait()
                    end.half_close()
                    yield from end.read().wait()
                except Closed:
                    continue
            self._untold = 0


def test_another_protocol_runs_on_the_same_network() -> None:
    Rumours.heard = []
    for seed in range(8):
        summary = simulate(seed, random.Random(seed), cores=Cores(services=(Rumours,)))
        assert summary.compared
    assert len(Rumours.heard) > 8
    assert all(count > 0 for count in Rumours.heard)
