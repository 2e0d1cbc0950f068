"""A Spark standalone cluster as processes of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil
import pyspark

from store.cli.submit import program
from tests.support.node import clean_environment

SPARK_HOME: Final = Path(pyspark.__file__).parent
PATIENCE_S: Final = 600.0
POLL_S: Final = 0.05
CORES: Final = 2
"""The cores of every worker, one for each of two applications."""

_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_JOINED: Final = re.compile(r"Successfully registered with master")
_APPLICATION: Final = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
}


def wait_for(reached: Callable[[], bool], what: str) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"it did not come to that: {what}"
        time.sleep(POLL_S)


def _environment(java_options: str) -> dict[str, str]:
    return clean_environment(
        SPARK_HOME=str(SPARK_HOME),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_DAEMON_JAVA_OPTS=java_options,
        SPARK_LAUNCHER_OPTS=java_options,
        SPARK_DAEMON_MEMORY="512m",
        PYSPARK_PYTHON=sys.executable,
    )


class Service:
    """A program of Spark's that runs until it is stopped; what it logs is kept in a file."""

    def __init__(
        self, directory: Path, name: str, environment: dict[str, str], *command: str
    ) -> None:
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
            )

    def logged(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until it has logged something."""
        found: list[re.Match[str]] = []

        def looked() -> bool:
            text = self._log.read_text()
            assert self.process.poll() is None, text[-5_000:]
            found.extend(pattern.finditer(text))
            return bool(found)

        wait_for(looked, pattern.pattern)
        return found[0]

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that it has started, and those that they have."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """Take it and all that it has started away at once, as when its machine fails."""
        everybody = [*self.descendants(), psutil.Process(self.process.pid)]
        for each in everybody:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def stop(self) -> None:
        """End it, if it still runs, and what it has started."""
        if self.process.poll() is None:
            self.kill()


class Cluster:
    """A master and two workers; `submit` runs the command by spark-submit.

    ``settings`` are those of Spark for every job, ``java_options`` those of the cluster's own JVMs.
    """

    def __init__(
        self, directory: Path, settings: Mapping[str, str], java_options: str = ""
    ) -> None:
        self._directory = directory
        self._environment = _environment(java_options)
        given = {**_APPLICATION, **settings}
        self._settings = [f"--conf={name}={value}" for name, value in given.items()]
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master = self._service(
            "master", "spark-class", "org.apache.spark.deploy.master.Master", *listen
        )
        self.workers: list[Service] = []
        try:
            self.url = self._master.logged(_MASTER)[1]
            begun = [self._begin_worker(number) for number in range(2)]
            for each in begun:
                each.logged(_JOINED)
        except BaseException:
            self.stop()
            raise

    def _service(self, name: str, *command: str) -> Service:
        return Service(self._directory, name, self._environment, *command)

    def _begin_worker(self, number: int) -> Service:
        name = f"worker-{number}"
        worker = self._service(
            name,
            "spark-class",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            *("--cores", str(CORES), "--memory", "2g"),
            *("--work-dir", str(self._directory / name), self.url),
        )
        self.workers.append(worker)
        return worker

    def kill(self, worker: Service) -> None:
        """Let a worker's machine fail."""
        self.workers.remove(worker)
        worker.kill()

    def submit(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``storenode pipeline`` by spark-submit."""
        submit = str(SPARK_HOME / "bin" / "spark-submit")
        command = [submit, "--master", self.url, *self._settings, program.__file__, "pipeline"]
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd=self._directory,
        )

    def stop(self) -> None:
        """End everything."""
        for each in [*self.workers, self._master]:
            each.stop()


def ports_of(processes: list[psutil.Process]) -> set[int]:
    """Return the local ports of the connections that processes have."""
    found: set[int] = set()
    for each in processes:
        try:
            found |= {one.laddr.port for one in each.net_connections("tcp")}
        except psutil.Error:
            continue  # it has ended
    return found
