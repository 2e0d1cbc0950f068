"""Runbooks of nodes that are down, not monitored, or not ready."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import yaml

from tests.deploy.runbooks.history import RULES
from tests.deploy.runbooks.scene import World, superuser
from tests.deploy.tools import DEPLOY
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.fleet import CONTENT
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

CONFIGURATION = DEPLOY / "prometheus/prometheus.yml"


def nodes(world: World) -> None:
    """Run one node that is killed, then not monitored, then kept from ending."""
    with running_node(world.directory / "data", database_url=world.new_store()) as node:
        _killed(world, node)
        _not_monitored(world, node)
        _draining(world, node)


def _killed(world: World, node: NodeProcess) -> None:
    values = {"127.0.0.1:7422": node.metrics}
    with world.incident("node-down", node, values=values) as down:
        node.kill()
        down.fires()
        assert down.do("curl", codes=(7,)).code == 7, "something listens"
        node.start()
        assert down.do("curl").out == "alive\n"
        down.do("storenode status")


def _not_monitored(world: World, node: NodeProcess) -> None:
    configuration = world.directory / "prometheus.yml"
    values = {"NODE:7422": node.metrics, "prometheus.yml": str(configuration)}
    _configure(configuration, [node.metrics])
    targets = _targets(configuration)
    with world.incident("no-targets", node, targets=targets, values=values) as lost:
        _configure(configuration, [])
        lost.targets = _targets(configuration)
        lost.fires()
        assert lost.do("curl http://NODE:7422").out == "ready\n"
        lost.do("storenode status")
        _configure(configuration, [node.metrics])
        assert "SUCCESS" in lost.do("promtool check config").out
        lost.targets = _targets(configuration)


def _draining(world: World, node: NodeProcess) -> None:
    """Keep a node from ending by a call that does not end."""
    with world.incident("node-not-ready", node, values={"NODE:7422": node.metrics}) as stuck:
        with psycopg.connect(superuser(node)) as holder:
            holder.execute("lock table storenode.messages in exclusive mode")
            call = Command.of(node).start("publish", "--content-topic", CONTENT, "held up")
            eventually(lambda: "publishes_in_flight 1.0" in get(node.metrics, "/metrics")[1])
            node.signal(signal.SIGTERM)
            eventually(lambda: get(node.metrics, "/readyz")[0] == 503)
            stuck.fires()
            stuck.do("select pg_reload_conf")
            assert stuck.do("curl").out == "not ready: the node is shutting down\n"
        assert call.wait() == 0, "what was under way ends well"
        node.wait()
        node.start()


def _configure(path: Path, targets: list[str]) -> None:
    """Write the configuration of the deployment, with other nodes."""
    content = yaml.safe_load(CONFIGURATION.read_text("utf-8"))
    content["rule_files"] = [str(RULES)]
    (job,) = (each for each in content["scrape_configs"] if each["job_name"] == "storenode")
    job["static_configs"] = [{"targets": targets}]
    path.write_text(yaml.safe_dump(content), "utf-8")


def _targets(path: Path) -> list[str]:
    content = yaml.safe_load(path.read_text("utf-8"))
    jobs = [each for each in content["scrape_configs"] if each["job_name"] == "storenode"]
    return [target for job in jobs for each in job["static_configs"] for target in each["targets"]]
