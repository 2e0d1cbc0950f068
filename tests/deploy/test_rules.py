"""Alert rules: valid, tested, each with a page that says what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from store.observe.problems import RULES as PROBLEMS
from store.observe.problems import RUNBOOKS as RUNBOOKS_URL
from tests.deploy.tools import DEPLOY, ROOT, run

PROMETHEUS = DEPLOY / "prometheus"
RULES = PROMETHEUS / "rules/storenode.yml"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
RUNBOOKS = ROOT / "docs/runbooks"
ADDRESS = "https://github.com/storenode/storenode/blob/main/docs/runbooks/"
"""Pages have an address of their own: who is woken reads the alert on a telephone."""


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


FROM_OUTSIDE = {
    *("node-down", "no-targets", "node-restarting", "disk-running-out"),
    *("gateway-down", "gateway-without-node"),
}
"""What a node cannot know: that it is not there, its last six hours, the gateways before it."""


def test_a_node_tells_of_itself_what_the_alerts_tell() -> None:
    alerted = {
        each["annotations"]["runbook_url"]: each["labels"]["severity"] == "critical"
        for each in alerts()
    }
    told = {f"{RUNBOOKS_URL}{rule.page}.md": rule.critical for rule in PROBLEMS}
    assert told == {
        url: critical
        for url, critical in alerted.items()
        if url.removeprefix(ADDRESS).removesuffix(".md") not in FROM_OUTSIDE
    }


def test_prometheus_accepts_configuration_rules_and_what_the_dashboard_asks(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/storenode.json").read_text("utf-8"))
    asked = [
        target["expr"].replace("$__rate_interval", "1m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(asked) > 40
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    run("promtool", "check", "rules", str(RULES), str(path))
    run("promtool", "check", "config", "--syntax-only", str(PROMETHEUS / "prometheus.yml"))


def test_rules_fire_when_they_must() -> None:
    run("promtool", "test", "rules", *map(str, TESTS))


def test_every_alert_is_tested_to_fire() -> None:
    text = "".join(path.read_text("utf-8") for path in TESTS)
    fired = set(re.findall(r'alertname="(\w+)"', text))
    fired |= set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", text))
    assert fired == {each["alert"] for each in alerts()}


def test_every_alert_has_a_severity_and_texts() -> None:
    for each in alerts():
        assert each["labels"]["severity"] in ("critical", "warning"), each["alert"]
        assert each["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    named = {each["annotations"]["runbook_url"] for each in alerts()}
    pages = {f"{ADDRESS}{path.name}" for path in RUNBOOKS.glob("*.md")}
    assert pages - {f"{ADDRESS}README.md"} == named
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    for each in alerts():
        name = each["annotations"]["runbook_url"].removeprefix(ADDRESS)
        page = (RUNBOOKS / name).read_text("utf-8")
        assert page.startswith(f"# {each['alert']}\n"), f"{name} is about another alert"
        for section in ("## What it means", "## Look at", "## Do", "## Escalate"):
            assert section in page, f"{name} lacks {section}"
        assert f"[{each['alert']}]({name})" in index, f"the index lacks {each['alert']}"
