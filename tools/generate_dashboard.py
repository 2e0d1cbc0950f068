"""Writes the Grafana dashboard of a store node, or checks that it is what this script gives.

    python tools/generate_dashboard.py [--check]

A dashboard is a few hundred lines of JSON that all look alike; `dashboard.toml` beside this script
is what differs. The data source is a variable, as the nodes are.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.rooms import ROOT, write_or_check

ROWS: Final = Path(__file__).with_name("dashboard.toml")
TARGET: Final = ROOT / "deploy/grafana/dashboards/storenode.json"

_SELECTED: Final = 'job="$job", instance=~"$instance"'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_STAT_WIDTH, _STAT_HEIGHT = 4, 4
_GRAPH_WIDTH, _GRAPH_HEIGHT = 8, 8

Json = dict[str, Any]


def dashboard() -> Json:
    """Return the dashboard as Grafana imports it."""
    panels: list[Json] = []
    top = 0
    for row in tomllib.loads(ROWS.read_text("utf-8"))["row"]:
        panels.append(_row(row["title"], len(panels) + 1, top))
        top += 1
        left = height = 0
        for panel in row["panel"]:
            stat = panel.get("stat", False)
            width = panel.get("width", _STAT_WIDTH if stat else _GRAPH_WIDTH)
            if left + width > _COLUMNS:
                top, left = top + height, 0
            height = _STAT_HEIGHT if stat else _GRAPH_HEIGHT
            place = {"h": height, "w": width, "x": left, "y": top}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += width
        top += height
    return {
        "uid": "storenode",
        "title": "storenode",
        "description": "Store nodes: what they hold, whom they serve, their databases and peers.",
        "tags": ["storenode"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": _variables()},
        "annotations": {"list": [_alerts()]},
        "links": [],
        "panels": panels,
    }


def _row(title: str, number: int, top: int) -> Json:
    return {
        "type": "row",
        "id": number,
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
        "panels": [],
    }


def _panel(panel: Json, number: int, place: Json) -> Json:
    made = {
        "id": number,
        "title": panel["title"],
        "description": panel["about"],
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expr.replace("SELECTED", _SELECTED),
                "legendFormat": legend,
            }
            for index, (legend, expr) in enumerate(panel["queries"])
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
    }
    return {**made, **(_as_stat() if panel.get("stat") else _as_graph())}


def _defaults(panel: Json) -> Json:
    steps = [
        {"value": value[0] if value else None, "color": colour}
        for colour, *value in panel.get("thresholds", [["text"]])
    ]
    unit = panel.get("unit", "short")
    made: Json = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if "mappings" in panel:
        options = {value: {"text": text} for value, text in panel["mappings"].items()}
        made["mappings"] = [{"type": "value", "options": options}]
    if panel.get("stat"):
        return made
    is_stacked = panel.get("stacked", False)
    return {
        **made,
        "min": 0,
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if is_stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        },
    }


def _as_stat() -> Json:
    return {
        "type": "stat",
        "options": {
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "value_and_name",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    }


def _as_graph() -> Json:
    return {
        "type": "timeseries",
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _variables() -> list[Json]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
            "hide": 0,
        },
        _values_of("job", "Job", "label_values(storenode_build_info, job)", several=False),
        _values_of(
            "instance",
            "Node",
            'label_values(storenode_build_info{job="$job"}, instance)',
            several=True,
        ),
    ]


def _values_of(name: str, label: str, query: str, *, several: bool) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        "current": {"text": "All", "value": "$__all"} if several else {},
    }


def _alerts() -> Json:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Storenode.*", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} {{peer}}{{table}}{{volume}}",
        "tagKeys": "severity",
    }


def main() -> int:
    """Write the file, or compare with it."""
    text = json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"
    return write_or_check({TARGET: text}, "tools/generate_dashboard.py")


if __name__ == "__main__":
    sys.exit(main())
