"""Runbooks of a gateway that is down, or that does not reach its node."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from chaos.ports import ReservedPort
from tests.deploy.runbooks.scene import World
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually


def gateways(world: World) -> None:
    """Run a gateway that loses its node, and one that is killed."""
    files, port = world.directory / "gateway", ReservedPort()
    with (
        running_node(world.directory / "data", database_url=world.new_store()) as node,
        ExitStack() as stack,
    ):

        def start() -> GatewayProcess:
            listener = ("--metrics-listen", port.address)
            return stack.enter_context(running_gateway(files, node.listen, *listener))

        gateway = start()
        _without_node(world, node, gateway)
        with world.gateway_incident(
            "gateway-down",
            gateway,
            values={"127.0.0.1:7424": gateway.metrics},
            left={"storenode gateway": "it is what the test starts"},
        ) as down:
            gateway.process.send_signal(signal.SIGKILL)
            assert gateway.process.wait() == -signal.SIGKILL
            down.fires()
            assert down.do("curl", codes=(7,)).code == 7, "something listens"
            assert start().peer_id == gateway.peer_id, "its addresses are those that clients have"
            assert down.do("curl").out == "alive\n"


def _without_node(world: World, node: NodeProcess, gateway: GatewayProcess) -> None:
    eventually(lambda: gateway.counted("node_reachable") == 1)
    assert gateway.get("/readyz")[0] == 200
    with world.gateway_incident(
        "gateway-without-node",
        gateway,
        env={"STORENODE_NODE": node.listen},
        values={"GATEWAY:7424": gateway.metrics, "HOST:PORT": node.listen},
    ) as lost:
        node.kill()
        # It is not ready from the loss of its connection on, and the gauge, which the alert reads,
        # says so once it has failed to connect again.
        eventually(lambda: gateway.counted("node_reachable") == 0)
        assert gateway.get("/readyz")[0] == 503
        lost.fires()
        assert node.listen in lost.do("curl").out
        assert node.listen in lost.do("storenode query --node", codes=(3,)).err
        assert "node_unreachable" in gateway.log.read_text("utf-8")
        node.start()
        eventually(lambda: gateway.counted("node_reachable") == 1)
        assert gateway.get("/readyz")[0] == 200
        lost.do("storenode query")
