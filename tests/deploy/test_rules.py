"""Alert rules: current, valid, tested, each with a page that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from store.observe.problems import RULES as PROBLEMS
from store.observe.problems import RUNBOOKS as RUNBOOKS_URL
from tests.deploy.drills import table
from tests.deploy.tools import DEPLOY, ROOT, run
from tests.support.faults import FAULTS, record
from tools.generate_rules import OPERATOR_TARGET, TARGET, alert_name, operator_rules, rules

PROMETHEUS = DEPLOY / "prometheus"
TESTS = PROMETHEUS / "tests/outside_test.yml"
RUNBOOKS = ROOT / "docs/runbooks"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(TARGET.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_the_alerts_are_those_of_the_problems() -> None:
    assert TARGET.read_text("utf-8") == rules()
    assert OPERATOR_TARGET.read_text("utf-8") == operator_rules()


def test_prometheus_accepts_configuration_rules_and_what_the_dashboard_asks(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/storenode.json").read_text("utf-8"))
    asked = [
        target["expr"].replace("$__rate_interval", "1m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(asked) > 40
    panels = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}), "utf-8")
    run("promtool", "check", "rules", str(TARGET), str(path))
    run("promtool", "check", "config", "--syntax-only", str(PROMETHEUS / "prometheus.yml"))


def test_alerts_about_what_no_node_reports_fire_when_they_must() -> None:
    run("promtool", "test", "rules", str(TESTS))
    text = TESTS.read_text("utf-8")
    fired = set(re.findall(r'alertname="(\w+)"', text))
    fired |= set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", text))
    outside = {each["alert"] for each in alerts()} - {alert_name(each.page) for each in PROBLEMS}
    assert fired >= outside


def test_alerts_fire_when_the_node_reports_the_problem(tmp_path: Path) -> None:
    """Check all faults at the same time, each at a node of its own."""
    names = set(re.findall(r"storenode_\w+", TARGET.read_text("utf-8")))
    for step_min in {fault.step_min for fault in FAULTS}:
        series: list[dict[str, str]] = []
        expected: list[dict[str, Any]] = []
        for fault in FAULTS:
            if fault.step_min == step_min:
                recorded, present = record(fault, names)
                series += _series(fault.name, recorded)
                expected += _expected(fault.name, present)
        path = tmp_path / f"every-{step_min}m.json"
        every = f"{step_min}m"
        test = {"interval": every, "input_series": series, "promql_expr_test": expected}
        content = {"rule_files": [str(TARGET)], "evaluation_interval": every}
        path.write_text(json.dumps({**content, "tests": [test]}), "utf-8")
        run("promtool", "test", "rules", str(path))


def _series(instance: str, recorded: Sequence[dict[str, float]]) -> list[dict[str, str]]:
    node = f'job="storenode",instance="{instance}"'
    values = {
        f"{each[:-1]},{node}}}".replace("{,", "{"): " ".join(
            # As Prometheus does, a series that a scrape lacks is marked as ended.
            str(taken.get(each, "stale"))
            for taken in recorded
        )
        for each in {each for taken in recorded for each in taken}
    }
    values[f"up{{{node}}}"] = " ".join("1" for _ in recorded)
    return [{"series": name, "values": f"_ {text}"} for name, text in sorted(values.items())]


def _expected(instance: str, present: Mapping[int, frozenset[str]]) -> list[dict[str, Any]]:
    """Return that just the alerts of the present problems fire, at some minutes."""
    selected = f'ALERTS{{alertstate="firing",instance="{instance}"}}'
    return [
        {
            "expr": f"group by (alertname) ({selected})",
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": f'{{alertname="{alert_name(page)}"}}', "value": 1}
                for page in sorted(pages)
            ],
        }
        for minute, pages in present.items()
    ]


def test_the_table_of_the_manual_is_that_of_the_drills() -> None:
    """Compare them; ``python -m tests.deploy.drills`` prints it again."""
    assert "\n".join(table()) in (ROOT / "docs/reference/alerts.md").read_text("utf-8")


def test_every_alert_has_a_severity_and_texts() -> None:
    for each in alerts():
        assert each["labels"]["severity"] in ("critical", "warning"), each["alert"]
        assert each["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    named = {each["annotations"]["runbook_url"] for each in alerts()}
    pages = {f"{RUNBOOKS_URL}{path.name}" for path in RUNBOOKS.glob("*.md")}
    assert pages - {f"{RUNBOOKS_URL}README.md"} == named
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    for each in alerts():
        name = each["annotations"]["runbook_url"].removeprefix(RUNBOOKS_URL)
        page = (RUNBOOKS / name).read_text("utf-8")
        assert page.startswith(f"# {each['alert']}\n"), f"{name} is about another alert"
        for section in ("## What it means", "## Look at", "## Do", "## Escalate"):
            assert section in page, f"{name} lacks {section}"
        assert f"[{each['alert']}]({name})" in index, f"the index lacks {each['alert']}"
