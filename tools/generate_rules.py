"""Writes the alerts of Prometheus from the problems of a node, or checks that they are current.

    python tools/generate_rules.py [--check]

The problems are defined in `store/observe/problems.py`; the description of an alert is the first
line of its runbook. Alerts that no node can raise itself are in `outside_rules.yml`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from store.gateway.metrics import GatewayMetrics
from store.observe.metrics import Metrics
from store.observe.problems import GATEWAY_RULES, RULES, RUNBOOKS, Condition, Rule, Series
from tools.rooms import ROOT, write_or_check

TARGET: Final = ROOT / "deploy/prometheus/rules/storenode.yml"
OPERATOR_TARGET: Final = ROOT / "deploy/kubernetes/components/monitoring/prometheus-rule.yaml"
OUTSIDE: Final = Path(__file__).with_name("outside_rules.yml")

_HEAD: Final = """\
# Alerts on store nodes. Each one names the page that says what to do.
# severity: critical pages the on-call engineer, warning waits for working hours.
#
# Made by tools/generate_rules.py from store/observe/problems.py and tools/outside_rules.yml: do not
# edit.
"""
_OF_NODE: Final = Metrics("")
_OF_GATEWAY: Final = GatewayMetrics("")
_ONE_NODE: Final = "on (job, instance)"
_FIELD: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}(?: (MiB|hours))?")
_VALUES: Final = {
    "value": "{{ $value | humanize }}",
    "mib": "{{ $value | humanize1024 }}B",
    "hours": "{{ $value | humanizeDuration }}",
}


def alert_name(page: str) -> str:
    """Return the name of the alert of a runbook."""
    return "Storenode" + "".join(map(str.capitalize, page.removeprefix("node-").split("-")))


def expression(rule: Rule) -> str:
    """Return the condition of a problem in PromQL."""
    metrics = _OF_GATEWAY if rule.of_gateway else _OF_NODE
    text = _condition(rule.condition, metrics)
    for each in rule.where:
        text = f"({text}) and {_ONE_NODE} ({_condition(each, metrics)})"
    for each in rule.unless:
        text = f"({text}) unless {_ONE_NODE} ({_condition(each, metrics)})"
    return text


def series(each: Series, metrics: object) -> str:
    """Return a selector in PromQL."""
    metric = getattr(metrics, each.metric)
    suffix = each.suffix or ("_total" if metric._type == "counter" else "")
    labels = ", ".join(
        f'{name}="{values[0]}"' if len(values) == 1 else f'{name}=~"{"|".join(values)}"'
        for name, values in each.labels
    )
    return f"{metric._name}{suffix}" + (f"{{{labels}}}" if labels else "")


def _condition(condition: Condition, metrics: object) -> str:
    name, window = series(condition.series[0], metrics), _duration(condition.window_s)
    bound = f"{condition.bound:.15g}"
    if condition.whole and condition.kind in ("above", "beyond", "older"):
        bound = f"{_ONE_NODE} group_left () {series(condition.whole[0], metrics)}"
    forms = {
        "above": f"{name} > {bound}",
        "beyond": f"abs({name}) > {bound}",
        "zero": f"{name} == 0",
        "older": f"time() - ({name} > 0) > {bound}",
        "below-peak": f"{name} < max_over_time({name}[{window}])",
        "peak-above": f"max_over_time({name}[{window}]) > {bound}",
        "not-shrinking": f"{name} >= ({name} offset {window}) and min_over_time({name}[{window}])"
        " > 0",
    }
    if condition.kind in forms:
        return forms[condition.kind]
    if condition.kind == "small-part":
        return f"{name} < {bound} * {series(condition.whole[0], metrics)}"
    growth = _growth(condition.series, window, metrics)
    if condition.kind == "grown":
        return f"{growth} > {bound}"
    rest = "1 - " if condition.kind == "large-rest" else ""
    return f"{rest}{growth} / {_growth(condition.whole, window, metrics)} > {bound}"


def _growth(counters: Sequence[Series], window: str, metrics: object) -> str:
    parts = (f"increase({series(each, metrics)}[{window}])" for each in counters)
    return f"sum by (job, instance) ({' or '.join(parts)})"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _summary(sentence: str) -> str:
    def field(found: re.Match[str]) -> str:
        name, unit = found[1], found[2]
        value = _VALUES.get(name)
        if value is None:
            return f"{{{{ $labels.{name} }}}}" + (f" {unit}" if unit else "")
        return value

    return _FIELD.sub(field, sentence)


def _description(page: str) -> str:
    text = (ROOT / f"docs/runbooks/{page}.md").read_text("utf-8")
    found = re.search(r"^In short: (.*?)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"docs/runbooks/{page}.md has no line `In short: ...`")
    return found[1][:1].upper() + found[1][1:]


def _alert(rule: Rule) -> dict[str, Any]:
    alert: dict[str, Any] = {"alert": alert_name(rule.page), "expr": expression(rule)}
    if rule.for_s:
        alert["for"] = _duration(rule.for_s)
    return alert | {
        "labels": {"severity": "critical" if rule.critical else "warning"},
        "annotations": {
            "summary": "{{ $labels.instance }}: " + _summary(rule.sentence),
            "description": _description(rule.page),
            "runbook_url": f"{RUNBOOKS}{rule.page}.md",
        },
    }


def rules() -> str:
    """Return the file of rules; conditions with one runbook are one alert."""
    groups = yaml.safe_load(OUTSIDE.read_text("utf-8"))["groups"]
    groups.append({"name": "storenode-problems", "rules": []})
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    for alert in map(_alert, (*RULES, *GATEWAY_RULES)):
        known = alerts.setdefault(alert["alert"], alert)
        if known is alert:
            groups[-1]["rules"].append(alert)
            continue
        known["expr"] = f"{known['expr']} or {alert['expr']}"
        short = known["annotations"]["description"]
        known["annotations"]["summary"] = (
            f"{{{{ $labels.instance }}}}: {short[:1].lower()}{short[1:-1]}"
        )
    return _HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=1_000)


def operator_rules() -> str:
    """Return the same rules as a resource of the Prometheus Operator."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "storenode", "labels": {"app.kubernetes.io/name": "storenode"}},
        "spec": yaml.safe_load(rules()),
    }
    return _HEAD + yaml.safe_dump(resource, sort_keys=False, width=1_000)


def main() -> int:
    """Write the files, or compare them with ``--check``; return the exit code."""
    texts = {TARGET: rules(), OPERATOR_TARGET: operator_rules()}
    return write_or_check(texts, "tools/generate_rules.py")


if __name__ == "__main__":
    sys.exit(main())
