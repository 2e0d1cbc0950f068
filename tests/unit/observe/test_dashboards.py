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
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from store.gateway.metrics import GatewayMetrics
from store.observe.metrics import DATABASE_EVENTS, MAINTENANCE_EVENTS, Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus/rules/storenode.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/storenode.json"

OF_OTHERS = {
    "up": set[str](),  # Prometheus itself
    "ALERTS": {"alertname", "alertstate"},
    "node_filesystem_avail_bytes": {"fstype", "mountpoint"},  # the node exporter
    "node_filesystem_size_bytes": {"fstype", "mountpoint"},
    "kubelet_volume_stats_available_bytes": {"namespace", "persistentvolumeclaim"},  # the kubelet
    "kubelet_volume_stats_capacity_bytes": {"namespace", "persistentvolumeclaim"},
    "node_systemd_unit_state": {"name", "state"},
    "kube_cronjob_status_last_schedule_time": {"namespace", "cronjob"},  # kube-state-metrics
    "kube_cronjob_status_last_successful_time": {"namespace", "cronjob"},
    "kube_cronjob_status_active": {"namespace", "cronjob"},
}
OF_SCRAPING = {"job", "instance"}
_WORDS = {"and", "or", "unless", "offset"}
_GROUPING = "by|on|ignoring|without|group_left|group_right"
_RECORDED = {"storenode:disk_free_bytes", "storenode:disk_size_bytes"}


@cache
def exported() -> dict[str, set[str]]:
    """Return names of series and their labels; collectors of the library have no labels."""
    metrics = Metrics("1.0")
    found: dict[str, set[str]] = {}
    for collector in (*vars(metrics).values(), *vars(GatewayMetrics("1.0")).values()):
        if isinstance(collector, MetricWrapperBase):
            for family in collector.describe():
                labels = set(collector._labelnames)
                found |= dict.fromkeys(_series(family), labels)
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set(sample.labels))
    return found


def _series(family: Metric) -> list[str]:
    if family.type == "histogram":
        return [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
    return [f"{family.name}_total" if family.type == "counter" else family.name]


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


def selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every name of a metric, with its matchers; of the subset of PromQL that rules use."""
    text = re.sub(rf"\b({_GROUPING})\s*\([^)]*\)", "", expression)
    word = re.compile(r"(?<![\w:])([a-zA-Z_:][\w:]*)(\s*\()?(\{[^}]*\})?")
    for match in word.finditer(_bare(text)):
        name, is_function = match.group(1), match.group(2)
        if name not in _WORDS and not is_function:
            matchers = text[match.start(3) : match.end(3)] if match.group(3) else ""
            yield name, dict(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers))


def _bare(text: str) -> str:
    """Return a text with ranges, durations, and strings outside of matchers replaced by spaces."""
    spans = re.compile(r'(\{[^}]*\})|"[^"]*"|\[[^]]*\]|(?<=offset )\w+')
    return spans.sub(lambda found: found.group(1) or " " * len(found.group()), text)


def grouped(expression: str) -> set[str]:
    """Return the labels that an expression groups by."""
    lists = re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",") if label.strip()}


def test_the_reader_finds_names_and_matchers() -> None:
    found = list(
        selectors(
            'sum by (a, le) (rate(x_total{a="b", c=~"d|e"}[$__rate_interval])) > 0.01 * y'
            " and on (job) z offset 3h < 36 * 3600"
            ' or label_replace(w{v="1"}, "m", "$1", "n", "(.*)")'
        )
    )
    assert found == [("x_total", {"a": "b", "c": "d|e"}), ("y", {}), ("z", {}), ("w", {"v": "1"})]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_labels_and_events_exist(where: str, expression: str) -> None:
    known = exported() | OF_OTHERS
    known |= {name: {"volume"} for name in _RECORDED}
    used: set[str] = set()
    named = list(selectors(expression))
    assert named, f"{where} names no metric"
    for name, matchers in named:
        assert name in known, f"{where}: no node exports {name}"
        used |= known[name]
        lacking = matchers.keys() - known[name] - OF_SCRAPING - {"le"}
        assert not lacking, f"{where}: {name} has no label {lacking}"
        events = set(matchers.get("event", "").split("|")) - {""}
        assert events <= {*MAINTENANCE_EVENTS, *DATABASE_EVENTS}, where
    assert grouped(expression) <= used | OF_SCRAPING | {"le"}, f"{where} groups by no label"


def test_events_count_from_zero() -> None:
    registry = Metrics("1.0").registry
    kinds = {"maintenance": MAINTENANCE_EVENTS, "database": DATABASE_EVENTS}
    for kind, events in kinds.items():
        for event in events:
            name = f"storenode_{kind}_events_total"
            assert registry.get_sample_value(name, {"event": event}) == 0
