"""The composition: that it is valid, and what it keeps secret."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from store.domain.access import parse_token_file
from tests.deploy.tools import DEPLOY, MEMORY_GIB, run

COMPOSE = DEPLOY / "compose"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    text = run("docker-compose", "--profile", "archive", "config", cwd=COMPOSE)
    parsed = yaml.safe_load(text)["services"]
    assert isinstance(parsed, dict)
    return parsed


def test_two_nodes_are_peers_and_each_has_two_databases(services: dict[str, Any]) -> None:
    databases = {"db-a-1", "db-a-2", "db-b-1", "db-b-2"}
    assert {"node-a", "node-b", "prometheus", "grafana", "etcd", *databases} <= services.keys()
    scopes = [services[name]["environment"]["PATRONI_SCOPE"] for name in sorted(databases)]
    assert scopes == ["store-a", "store-a", "store-b", "store-b"]
    for node, other in (("node-a", "node-b"), ("node-b", "node-a")):
        command = services[node]["command"]
        assert command[command.index("--peer") + 1] == f"{other}@{other}:7430"
        assert command[command.index("--allow-peer") + 1] == other
        assert services[node]["environment"]["STORENODE_TLS_CA"] == "/run/secrets/ca"


def test_the_gateway_is_a_client_that_may_only_read(services: dict[str, Any]) -> None:
    gateway = services["gateway"]
    assert gateway["command"][:3] == ["gateway", "--node", "node-a:7420"]
    assert {each["source"] for each in gateway["secrets"]} == {"ca", "gateway-token"}
    (volume,) = gateway["volumes"]
    target = volume["target"] if isinstance(volume, dict) else volume.split(":")[1]
    assert gateway["environment"]["STORENODE_KEY_FILE"].startswith(f"{target}/")


def test_what_is_mounted_is_there(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith(str(DEPLOY)) and not source.endswith("/compose/archive"):
                assert Path(source).exists(), f"{name} mounts {source}"


def test_images_of_others_are_pinned_and_ports_are_on_loopback(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" not in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name}: {service['image']}"
        for port in service.get("ports", ()):
            assert str(port).startswith("127.0.0.1:"), f"{name} listens beyond this host: {port}"


def test_prometheus_scrapes_the_nodes_and_the_gateway(services: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
    jobs = {
        each["job_name"]: {*each["static_configs"][0]["targets"]}
        for each in config["scrape_configs"]
    }
    named = {"storenode": ("node-a", "node-b"), "storenode-gateway": ("gateway",)}
    for job, names in named.items():
        listens = {services[name]["environment"]["STORENODE_METRICS_LISTEN"] for name in names}
        assert listens == {"0.0.0.0:7422"}
        assert jobs[job] == {f"{name}:7422" for name in names}


def test_nodes_have_the_memory_that_their_bounds_need(services: dict[str, Any]) -> None:
    for name in ("node-a", "node-b"):
        limit = MEMORY_GIB["node"]
        assert str(services[name]["mem_limit"]) in {f"{limit}g", str(limit * 1024**3)}


def test_nodes_may_do_little(services: dict[str, Any]) -> None:
    for name in ("node-a", "node-b", "gateway", "upgrade-a", "upgrade-b", "archive-a"):
        service = services[name]
        assert service["user"] == "10001:10001"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_the_secrets_work_together_and_are_made_once(tmp_path: Path) -> None:
    script = ["sh", str(COMPOSE / "make-secrets.sh"), str(tmp_path / "secrets")]
    if os.getuid() != 0:
        refused = subprocess.run(script, capture_output=True, text=True, check=False)
        assert (refused.returncode, "run it as root" in refused.stderr) == (1, True)
        return
    run(*script)
    made = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    run(*script)
    assert {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()} == made
    secrets = tmp_path / "secrets"
    for node in ("node-a", "node-b"):
        run("openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", f"{node}.pem", cwd=secrets)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(secrets / f"{node}.pem", secrets / f"{node}.key")
        names = run(
            "openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", f"{node}.pem", cwd=secrets
        )
        assert re.findall(r"DNS:([^,\s]+)", names)[0] == node, "the first name is the node's ID"
    for path in secrets.iterdir():
        assert path.stat().st_mode & 0o077 == 0, f"others may read {path.name}"
    text = (secrets / "clients.toml").read_text()
    parse_token_file(text)
    clients = tomllib.loads(text)["clients"]
    token = (secrets / "app.token").read_text().strip()
    assert clients["gateway"]["rights"] == ["read"]
    assert clients["app"]["token_sha256"] == sha256(token.encode()).hexdigest()
    url = tomllib.loads((secrets / "database-a.toml").read_text())["database-url"]
    password = (secrets / "postgres-storenode.password").read_text().strip()
    assert url == f"postgresql://storenode:{password}@db-a-1:5432,db-a-2:5432/storenode"
