"""Metrics that alerts and the dashboard name: they are exported, with these labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from store.gateway.metrics import GatewayMetrics
from store.observe.metrics import DATABASE_EVENTS, MAINTENANCE_EVENTS, Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus/rules/storenode.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/storenode.json"
OF_SCRAPING = {"job", "instance", "le"}
OF_OTHERS = {
    *("cronjob", "mountpoint", "name", "namespace", "persistentvolumeclaim", "state", "volume")
}
"""Labels of exporters of other projects, by which expressions group too."""

SERIES = re.compile(r"\b(storenode_\w+)(?:\{([^}]*)\})?")
FOREIGN = re.compile(r"\b(ALERTS|kube\w+|node_\w+|process_\w+|storenode:\w+|up)\b")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)")


@cache
def exported() -> dict[str, set[str]]:
    """Return names of series and their labels."""
    found: dict[str, set[str]] = {}
    for collector in (*vars(Metrics("1.0")).values(), *vars(GatewayMetrics("1.0")).values()):
        if isinstance(collector, MetricWrapperBase):
            for family in collector.describe():
                parts = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
                for part in parts.get(family.type, ("",)):
                    found[family.name + part] = set(collector._labelnames)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where each expression is, and the expression."""
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield "annotation", annotation["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_labels_and_events_exist(where: str, expression: str) -> None:
    assert SERIES.search(expression) or FOREIGN.search(expression), f"{where} names no metric"
    used: set[str] = set()
    for name, given in SERIES.findall(expression):
        assert name in exported(), f"{where}: no node exports {name}"
        used |= exported()[name]
        matchers = dict(MATCHER.findall(given))
        lacking = matchers.keys() - exported()[name] - OF_SCRAPING
        assert not lacking, f"{where}: {name} has no label {lacking}"
        events = set(matchers.get("event", "").split("|")) - {""}
        assert events <= {*MAINTENANCE_EVENTS, *DATABASE_EVENTS}, where
    grouped = set(re.findall(r"\w+", " ".join(GROUPED.findall(expression))))
    assert grouped <= used | OF_SCRAPING | OF_OTHERS, f"{where} groups by no label"


def test_events_count_from_zero() -> None:
    registry = Metrics("1.0").registry
    kinds = {"maintenance": MAINTENANCE_EVENTS, "database": DATABASE_EVENTS}
    for kind, events in kinds.items():
        for event in events:
            name = f"storenode_{kind}_events_total"
            assert registry.get_sample_value(name, {"event": event}) == 0
