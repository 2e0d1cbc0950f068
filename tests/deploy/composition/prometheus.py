"""A Prometheus with the configuration and the rules of the deployment, at another pace."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.composition.arrangement import Composition
from tests.deploy.tools import DEPLOY
from tests.support.polling import eventually

CONFIGURATION: Final = DEPLOY / "prometheus/prometheus.yml"
RULES: Final = DEPLOY / "prometheus/rules/storenode.yml"
EVERY: Final = "1s"
"""How often it scrapes and evaluates, in place of every 15 s."""

_FOR: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TIMEOUT_S: Final = 30


class Prometheus:
    """Scrapes what `prometheus.yml` names, and evaluates the shipped rules.

    A minute of `for` is a second here; the expressions are as they are shipped.
    """

    def __init__(self, composition: Composition) -> None:
        self._address = composition.address("prometheus", 9090)
        directory = composition.place("prometheus")
        directory.mkdir()
        (directory / "rules.yml").write_text(yaml.safe_dump(_hurried()), "utf-8")
        configuration = directory / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(_configured(composition, directory)), "utf-8")
        process = composition.launch(
            "prometheus",
            [
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self._address}",
            ],
        )
        eventually(lambda: process.poll() is not None or self._is_ready())
        assert process.poll() is None, composition.log("prometheus")

    def firing(self, alert: str, target: str) -> bool:
        """Return True if an alert fires about a HOST:PORT, by `/api/v1/alerts`."""
        return any(
            each["labels"]["alertname"] == alert
            and each["labels"].get("instance") == target
            and each["state"] == "firing"
            for each in self._get("/api/v1/alerts")["alerts"]
        )

    def holds(self, expression: str) -> bool:
        """Return True if an expression gives anything now."""
        asked = urllib.parse.urlencode({"query": expression})
        return bool(self._get(f"/api/v1/query?{asked}")["result"])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=_TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=_TIMEOUT_S) as answer:
            return json.load(answer)["data"]


def _configured(composition: Composition, directory: Path) -> dict[str, Any]:
    text = composition.in_place("prometheus", CONFIGURATION.read_text("utf-8"))
    content: dict[str, Any] = yaml.safe_load(text)
    content["global"] = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    content["rule_files"] = [str(directory / "rules.yml")]
    return content


def _hurried() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(RULES.read_text("utf-8"))
    for group in content["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                found = _FOR.fullmatch(rule["for"])
                assert found is not None, rule
                rule["for"] = f"{max(1, int(found[1]) * _SECONDS[found[2]] // 60)}s"
    return content
