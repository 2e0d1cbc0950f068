"""Writes the Grafana dashboard of a store node, or checks that it is what this script gives.

    python tools/generate_dashboard.py [--check]

A dashboard is a few hundred lines of JSON that all look alike; here is what differs. Rows and
panels appear in the order of `ROWS`. Every query is limited to the nodes that the variables `job`
and `instance` choose (`SELECTED` in an expression), and the data source is a variable too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

TARGET: Final = Path(__file__).parents[1] / "deploy/grafana/dashboards/storenode.json"

SELECTED: Final = 'job="$job", instance=~"$instance"'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_STAT_HEIGHT: Final = 4
_GRAPH_HEIGHT: Final = 8

Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One panel: `queries` are pairs of an expression and the legend of its series.

    `unit` is Grafana's name of it. `thresholds` are pairs of a value and the colour from there on;
    the first value is None. A `stat` shows one number for each node, any other panel is a graph.
    """

    title: str
    about: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    width: int = 8
    stat: bool = False
    thresholds: Sequence[tuple[float | None, str]] = ((None, "text"),)
    mappings: dict[str, str] = field(default_factory=dict)
    stacked: bool = False


_GOOD_IF_ONE: Final = ((None, "red"), (1, "green"))
_YES_NO: Final = {"0": "no", "1": "yes"}


def _of(name: str, *matchers: str) -> str:
    """The series of a metric on the nodes that are selected."""
    return f"{name}{{{', '.join((SELECTED, *matchers))}}}"


def _rate(name: str, by: str, *matchers: str) -> str:
    """Per second, added up by labels."""
    return f"sum by ({by}) (rate({_of(name, *matchers)}[$__rate_interval]))"


def _hourly(name: str, by: str) -> str:
    """In the last hour, added up by labels."""
    return f"sum by ({by}) (increase({_of(name)}[1h]))"


def _quantile(share: float, name: str, by: str) -> str:
    """Of a histogram: the value that this share does not exceed."""
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', f'{by}, le')})"


def _mean(name: str) -> str:
    """Of what a histogram observed in the last hour."""
    return f"{_hourly(f'{name}_sum', 'instance')} / {_hourly(f'{name}_count', 'instance')}"


def _rows(state: str) -> str:
    return _of("storenode_table_rows", f'state="{state}"')


def _age(name: str) -> str:
    """For how long a Unix time has been over; nothing where it is 0."""
    return f"time() - ({_of(name)} > 0)"


def _stat(title: str, about: str, expr: str, unit: str = "short", **more: Any) -> Panel:  # noqa: ANN401 - fields of `Panel`
    return Panel(title, about, [(expr, "{{instance}}")], unit, width=4, stat=True, **more)


_WELL: Final = (
    _stat(
        "Ready",
        "Whether the node serves; red: no.",
        _of("storenode_ready"),
        thresholds=_GOOD_IF_ONE,
        mappings=_YES_NO,
    ),
    _stat(
        "Database",
        "Whether its database answers and takes writes; red: no.",
        _of("storenode_database_up"),
        thresholds=_GOOD_IF_ONE,
        mappings=_YES_NO,
    ),
    _stat("Messages", "Messages held.", _of("storenode_messages")),
    _stat(
        "Oldest message",
        "Age of the oldest message held; not much more than the retention.",
        _age("storenode_oldest_timestamp_seconds"),
        "s",
    ),
    _stat(
        "Partitions ahead",
        "For how long from now on there are partitions for new messages.",
        f"{_of('storenode_partitions_until_timestamp_seconds')} - time()",
        "s",
        thresholds=((None, "red"), (86_400, "yellow"), (129_600, "green")),
    ),
    _stat(
        "Oldest unarchived hour",
        "How long ago it began. Of interest where an archive is kept.",
        _age("storenode_oldest_unarchived_timestamp_seconds"),
        "s",
    ),
)
_HTTP_REQUESTS: Final = f"rate({_of('storenode_http_requests_total')}[$__rate_interval])"

_CLIENTS: Final = (
    Panel(
        "Messages stored",
        "New messages a second, by the way they came in; and those that were held or not kept.",
        [
            (_rate("storenode_messages_stored_total", "source"), "{{source}}"),
            (_rate("storenode_messages_duplicate_total", "job"), "held already"),
            (_rate("storenode_messages_ephemeral_total", "job"), "ephemeral"),
        ],
        "cps",
        stacked=True,
    ),
    Panel(
        "Messages refused",
        "A second, by source and reason. too_new and too_old from many clients mean that a clock is"
        " off.",
        [(_rate("storenode_messages_rejected_total", "source, reason"), "{{source}}: {{reason}}")],
        "cps",
    ),
    Panel(
        "Calls that fail",
        "Calls a second that ended with another code than OK.",
        [(_rate("storenode_calls_total", "method, code", 'code!="OK"'), "{{method}} {{code}}")],
        "cps",
    ),
    Panel(
        "Publishing takes",
        "From a batch's arrival to its commit: half of them, and one in a hundred.",
        [
            (
                _quantile(share, "storenode_publish_batch_seconds", "instance"),
                f"{{{{instance}}}} {name}",
            )
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        ],
        "s",
    ),
    Panel(
        "Reads take",
        "One in a hundred takes longer, by method.",
        [(_quantile(0.99, "storenode_query_seconds", "method"), "{{method}} p99")],
        "s",
    ),
    Panel(
        "Under way",
        "Batches that are not yet acknowledged, and live followers.",
        [
            (_of("storenode_publishes_in_flight"), "{{instance}} batches"),
            (_of("storenode_followers"), "{{instance}} followers"),
        ],
    ),
    Panel(
        "HTTP requests",
        "A second, by operation and status. 499: the caller hung up.",
        [(f"sum by (operation, code) ({_HTTP_REQUESTS})", "{{operation}} {{code}}")],
        "reqps",
    ),
)
_STORAGE: Final = (
    Panel(
        "Size of tables",
        "With partitions and indexes.",
        [(f"max by (table) ({_of('storenode_table_bytes')})", "{{table}}")],
        "bytes",
        stacked=True,
    ),
    Panel(
        "Free space",
        "Of all disks that databases are on; a recording rule gathers them.",
        [("storenode:disk_free_bytes / storenode:disk_size_bytes", "{{instance}} {{volume}}")],
        "percentunit",
    ),
    Panel(
        "Dead rows",
        "As a share of the live ones, of tables with more than 1,000 of them.",
        [
            (
                f"({_rows('dead')} > 1000) / ignoring (state) clamp_min({_rows('live')}, 1)",
                "{{instance}} {{table}}",
            )
        ],
        "percentunit",
    ),
    Panel(
        "Maintenance",
        "Its events in the last hour, and which node does it.",
        [
            (f"{_hourly('storenode_maintenance_events_total', 'event')} > 0", "{{event}}"),
            (f"{_of('storenode_maintenance_in_charge')} == 1", "in charge: {{instance}}"),
        ],
    ),
    Panel(
        "Partitions",
        "By table.",
        [(f"max by (table) ({_of('storenode_partitions')})", "{{table}}")],
    ),
    Panel(
        "Unarchived hours",
        "Hours that are over, have messages, and are not marked as archived.",
        [(_of("storenode_unarchived_hours"), "{{instance}}")],
    ),
)
_DATABASE: Final = (
    Panel(
        "Connections in use",
        "By pool.",
        [(_of("storenode_pool_connections", 'state="used"'), "{{instance}} {{pool}}")],
    ),
    Panel(
        "Calls that wait for a connection",
        "Above 0 for long: the pool is too small, or the database too slow.",
        [(_of("storenode_pool_connections", 'state="waiting"'), "{{instance}} {{pool}}")],
    ),
    Panel(
        "Standbys",
        "That are connected for replication.",
        [(_of("storenode_database_standbys"), "{{instance}}")],
    ),
    Panel(
        "Replication lag",
        "Log that a standby has not replayed; needs the role pg_read_all_stats.",
        [(_of("storenode_database_standby_lag_bytes"), "{{instance}} {{standby}}")],
        "bytes",
    ),
    Panel(
        "Events",
        "What happened to the database in the last hour.",
        [
            (
                f"{_hourly('storenode_database_events_total', 'instance, event')} > 0",
                "{{instance}} {{event}}",
            )
        ],
    ),
    Panel(
        "Feed",
        "Commit positions a second that followers were served up to.",
        [(f"rate({_of('storenode_feed_position')}[$__rate_interval])", "{{instance}}")],
        "cps",
    ),
)
_PEERS: Final = (
    Panel(
        "Since the last reconciliation",
        "By peer. A few intervals at most, more with many peers.",
        [(_age("storenode_peer_last_sync_timestamp_seconds"), "{{instance}} with {{peer}}")],
        "s",
    ),
    Panel(
        "Failures in a row",
        "Of sessions that this node began, by peer.",
        [(_of("storenode_peer_failures"), "{{instance}} with {{peer}}")],
    ),
    Panel(
        "Differences left",
        "Messages that one side still lacked after a session.",
        [(_of("storenode_peer_differences"), "{{instance}} with {{peer}}, {{window}}")],
    ),
    Panel(
        "Sessions",
        "Ended in the last hour, by role and outcome.",
        [(_hourly("storenode_sync_sessions_total", "role, outcome"), "{{role}} {{outcome}}")],
    ),
    Panel(
        "Differences found",
        "Messages that one side lacked, per session, on average over an hour.",
        [
            (
                _mean("storenode_sync_differences"),
                "{{instance}}",
            )
        ],
    ),
    Panel(
        "Comparisons",
        "Sessions of the last hour by comparison and mode, and differences that XOR hid.",
        [
            (_hourly("storenode_sync_comparisons_total", "equality"), "{{equality}}"),
            (_hourly("storenode_sync_hidden_differences_total", "instance"), "{{instance}} hidden"),
            (_hourly("storenode_sync_modes_total", "mode"), "{{mode}}"),
        ],
    ),
    Panel(
        "Transferred",
        "Messages a second that reconciliation moved, by direction and outcome.",
        [
            (
                _rate("storenode_transfer_messages_total", "direction, outcome"),
                "{{direction}} {{outcome}}",
            )
        ],
        "cps",
    ),
)
_GOSSIP: Final = (
    Panel(
        "Unread events",
        "Messages that too few other stores have confirmed, and that wait for parents.",
        [
            (_of("storenode_unread_events"), "{{instance}} unread"),
            (_of("storenode_waiting_events"), "{{instance}} waiting"),
        ],
    ),
    Panel(
        "The oldest unread event waits",
        "Beyond a minute: peers are away, or fewer than are asked for.",
        [(_of("storenode_unread_oldest_seconds"), "{{instance}}")],
        "s",
    ),
    Panel("Peers", "By state.", [(_of("storenode_gossip_peers"), "{{instance}} {{state}}")]),
    Panel(
        "What gossip does",
        "Events a second.",
        [(_rate("storenode_gossip_events_total", "what"), "{{what}}")],
        "cps",
        width=12,
    ),
    Panel(
        "Bytes of messages on the streams",
        "A second, by direction.",
        [(_rate("storenode_gossip_body_bytes_total", "direction"), "{{direction}}")],
        "Bps",
        width=12,
    ),
)
_PROCESS: Final = (
    Panel(
        "Memory",
        "Resident.",
        [(_of("process_resident_memory_bytes"), "{{instance}}")],
        "bytes",
    ),
    Panel(
        "Processor",
        "Cores in use.",
        [(_rate("process_cpu_seconds_total", "instance"), "{{instance}}")],
    ),
    Panel(
        "Log lines held back",
        "Equal lines of a flood, since the start.",
        [(_of("storenode_log_events_suppressed"), "{{instance}}")],
    ),
)
_GATEWAYS: Final = (
    Panel(
        "Connections of Waku clients",
        "Open ones. Gateways are in a job of their own, whichever is chosen above.",
        [("storenode_gateway_open_connections", "{{instance}}")],
    ),
    Panel(
        "Queries of Waku clients",
        "A second, by who answered: the node, or the gateway with a status of its own.",
        [("sum by (by) (rate(storenode_gateway_queries_total[$__rate_interval]))", "{{by}}")],
        "reqps",
    ),
    Panel(
        "Refused Waku clients",
        "Connections, streams and queries a second, by reason.",
        [
            (
                "sum by (reason) (rate(storenode_gateway_refusals_total[$__rate_interval])) > 0",
                "{{reason}}",
            )
        ],
        "cps",
    ),
)
ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    ("Health", _WELL),
    ("Messages and clients", _CLIENTS),
    ("Storage", _STORAGE),
    ("Database", _DATABASE),
    ("Peers", _PEERS),
    ("Gossip", _GOSSIP),
    ("Process", _PROCESS),
    ("Gateways", _GATEWAYS),
)


def dashboard() -> Json:
    """The dashboard as Grafana imports it."""
    panels: list[Json] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(title, len(panels) + 1, top))
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            height = _STAT_HEIGHT if panel.stat else _GRAPH_HEIGHT
            place = {"h": height, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
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


def _panel(panel: Panel, number: int, place: Json) -> Json:
    made = {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for index, (expr, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
    }
    return {**made, **(_as_stat() if panel.stat else _as_graph())}


def _defaults(panel: Panel) -> Json:
    steps = [{"value": value, "color": colour} for value, colour in panel.thresholds]
    made: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.mappings:
        options = {value: {"text": text} for value, text in panel.mappings.items()}
        made["mappings"] = [{"type": "value", "options": options}]
    if panel.stat:
        return made
    stacking = "normal" if panel.stacked else "none"
    return {
        **made,
        "min": 0,
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": stacking, "group": "A"},
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
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, "utf-8")
        return 0
    if TARGET.read_text("utf-8") == text:
        return 0
    sys.stderr.write(
        f"{TARGET.name} is not what this script gives:"
        " run `python tools/generate_dashboard.py` and commit what it writes.\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
