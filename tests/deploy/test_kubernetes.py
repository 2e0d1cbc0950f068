"""The manifests: valid for Kubernetes, with no more rights than the restricted standard allows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from storenode.cli.main import cli
from tests.deploy.tools import DEPLOY, MEMORY_GIB, run

OVERLAYS = sorted(path.name for path in (DEPLOY / "kubernetes/overlays").iterdir())
OF_OTHERS = {"PodMonitor", "PrometheusRule", "ServiceMonitor"}
"""Kinds whose schema Kubernetes does not know."""

VERSIONS = ("1.30", kubernetes_validate.latest_version())

Manifest = dict[str, Any]


@cache
def rendered(overlay: str) -> list[Manifest]:
    return kustomized(DEPLOY / "kubernetes/overlays" / overlay)


def kustomized(folder: Path) -> list[Manifest]:
    text = run("kubectl", "kustomize", str(folder))
    return [each for each in yaml.safe_load_all(text) if each]


def pods(manifest: Manifest) -> Iterator[Manifest]:
    """Yield the specifications of pods in a manifest."""
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    if "template" in spec:
        yield spec["template"]["spec"]


def test_there_is_an_overlay_for_each_way_to_run() -> None:
    assert OVERLAYS == ["embedded", "production", "spark-cluster"]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_valid(overlay: str, version: str) -> None:
    for manifest in rendered(overlay):
        if manifest["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_restricted_and_bounded(overlay: str) -> None:
    found = [(each["metadata"]["name"], pod) for each in rendered(overlay) for pod in pods(each)]
    assert found
    for name, pod in found:
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert context["readOnlyRootFilesystem"], name
            assert container["resources"]["limits"]["memory"], name
            assert container["image"].startswith("registry.example/"), "the overlay names no image"
            assert not container["image"].endswith(":latest"), name


@pytest.mark.parametrize(("overlay", "kind"), [("production", "node"), ("embedded", "embedded")])
def test_nodes_have_the_memory_that_their_bounds_need(overlay: str, kind: str) -> None:
    (node,) = (each for each in rendered(overlay) if each["kind"] == "StatefulSet")
    (container,) = node["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == f"{MEMORY_GIB[kind]}Gi"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_only_referred_to(overlay: str) -> None:
    manifests = rendered(overlay)
    assert "Secret" not in {each["kind"] for each in manifests}
    assert "postgresql://" not in yaml.safe_dump_all(manifests)


def test_probes_ask_what_the_node_answers() -> None:
    (nodes,) = [each for each in rendered("production") if each["kind"] == "StatefulSet"]
    (container,) = nodes["spec"]["template"]["spec"]["containers"]
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/healthz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }


def test_a_node_that_is_not_ready_keeps_no_machine_from_being_drained() -> None:
    (budget,) = [each for each in rendered("production") if each["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_small_overlay_has_its_data_on_a_volume_and_no_database_elsewhere() -> None:
    manifests = rendered("embedded")
    assert not {"Job", "PodDisruptionBudget"} & {each["kind"] for each in manifests}
    (node,) = [each for each in manifests if each["kind"] == "StatefulSet"]
    (container,) = node["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in container["env"]] == ["POD_NAME"]
    assert [each["metadata"]["name"] for each in node["spec"]["volumeClaimTemplates"]] == ["data"]
    assert "data" not in {each["name"] for each in node["spec"]["template"]["spec"]["volumes"]}


def with_component(folder: Path, name: str) -> dict[tuple[str, str], Manifest]:
    """Return the base with a component, by kind and name."""
    base, component = DEPLOY / "kubernetes/base", DEPLOY / "kubernetes/components" / name
    parts = {
        "resources": [os.path.relpath(base, folder.resolve())],
        "components": [os.path.relpath(component, folder.resolve())],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    found = {(each["kind"], each["metadata"]["name"]): each for each in kustomized(folder)}
    for manifest in found.values():
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    return found


def test_the_component_for_gateways_leads_from_clients_to_nodes(tmp_path: Path) -> None:
    found = with_component(tmp_path, "gateway")
    pod = found["Deployment", "storenode-gateway"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    command = cli.get_command(click.Context(cli), "gateway")
    assert command is not None
    given = command.make_context("gateway", container["args"][1:]).params
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each.over_tcp: each.port for each in given["listen"]} == {
        ("tls", "ws"): ports["wss"],
        (): ports["tcp"],
    }
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    for file in ("key_file", "wss_cert", "wss_key", "token_file", "tls_ca"):
        assert str(given[file].parent) in mounted, file
    # The key is refused where everybody can read it.
    (secret,) = (v["secret"] for v in pod["volumes"] if v["name"] == "gateway")
    assert secret["defaultMode"] & 0o007 == 0
    labels = found["Deployment", "storenode-gateway"]["spec"]["template"]["metadata"]["labels"]
    # Gateways are on several machines, and one at a time is moved.
    (spread,) = pod["topologySpreadConstraints"]
    budget = found["PodDisruptionBudget", "storenode-gateway"]["spec"]
    assert spread["labelSelector"] == budget["selector"] == {"matchLabels": labels}
    assert budget["maxUnavailable"] == 1
    service = found["Service", "storenode-gateway"]["spec"]
    assert {each["targetPort"] for each in service["ports"]} == {"wss", "tcp"}
    # Nodes listen where gateways call, and let them in.
    ((node, _, port),) = (each.partition(":") for each in given["node"])
    served = {each["port"]: each["targetPort"] for each in found["Service", node]["spec"]["ports"]}
    policy = found["NetworkPolicy", "storenode-from-gateway"]["spec"]["ingress"][0]
    assert policy["ports"] == [{"port": served[int(port)]}]
    assert policy["from"] == [{"podSelector": {"matchLabels": labels}}]


def test_the_component_for_http_opens_its_port_to_clients(tmp_path: Path) -> None:
    found = with_component(tmp_path, "http")
    port = int(found["ConfigMap", "storenode"]["data"]["STORENODE_HTTP_LISTEN"].split(":")[1])
    (container,) = found["StatefulSet", "storenode"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "http", "containerPort": port} in container["ports"]
    served = {each["name"]: each for each in found["Service", "storenode"]["spec"]["ports"]}
    assert served["http"]["targetPort"] == "http"
    clients = found["NetworkPolicy", "storenode"]["spec"]["ingress"][0]
    assert {"port": "http"} in clients["ports"]
