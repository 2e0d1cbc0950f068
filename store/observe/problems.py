"""The problems of a node: conditions on its own metrics, as `problems.toml` defines them.

The status page, ``storenode status`` and ``GetStatus`` show them. The alerts of Prometheus
(`deploy/prometheus/rules`) are generated from the same definitions by `tools/generate_rules.py`, so
that both have the same conditions and durations.
"""

from __future__ import annotations

import time
import tomllib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

from store.observe.metrics import samples

RUNBOOKS: Final = "https://github.com/storenode/storenode/blob/main/docs/runbooks/"

MAX_STEPS: Final = 1_024
"""Changes of a metric that are kept; with more, the time that is covered is shorter."""

_MIB: Final = 1024 * 1024

ENDED_S: Final = 3_600.0
MAX_ENDED: Final = 16
"""Limits of the problems that are over and still shown, the newest ones."""

_DETAILS: Final = frozenset({"cause"})
"""Labels that may change while a problem lasts."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
Vector: TypeAlias = dict[Labels, float]
_Key: TypeAlias = tuple[int, Labels]


class Series(NamedTuple):
    """The series of a metric, an attribute of `Metrics`, whose labels have one of these values."""

    metric: str
    suffix: str
    labels: Sequence[tuple[str, tuple[str, ...]]]

    @classmethod
    def parse(cls, text: str) -> Series:
        """Parse ``metric``, ``metric:suffix`` or ``metric{label=value|value,label=value}``."""
        name, _, labels = text.removesuffix("}").partition("{")
        metric, _, suffix = name.partition(":")
        pairs = (each.partition("=") for each in labels.split(",") if each)
        wanted = tuple((label, tuple(values.split("|"))) for label, _, values in pairs)
        return cls(metric, f"_{suffix}" if suffix else "", wanted)


class Condition(NamedTuple):
    """A condition on metrics, of one kind.

    - ``above``, ``beyond``: a value, or its absolute value, is above ``bound``;
    - ``zero``: a value is zero;
    - ``small-part``: a value is less than the share ``bound`` of that of ``whole``;
    - ``older``: a time, in Unix seconds and not 0, is more than ``bound`` seconds ago;
    - ``grown``: counters have grown by more than ``bound`` within the window;
    - ``large-share``, ``large-rest``: the growth of ``series``, or the rest of the growth of
      ``whole``, is above the share ``bound`` of the growth of ``whole``;
    - ``below-peak``: a value is below its largest within the window;
    - ``peak-above``: the largest value within the window is above ``bound``;
    - ``not-shrinking``: a value was never 0 within the window and is as large as at its beginning.

    For ``above``, ``beyond`` and ``older`` the bound is the value of ``whole``, if that is given.
    """

    kind: str
    series: tuple[Series, ...]
    whole: tuple[Series, ...] = ()
    bound: float = 0.0
    window_s: float = 0.0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Condition:
        """Return the condition that a table defines."""
        names = {"series", "whole"} & table.keys()
        return cls(**{**table, **{name: tuple(map(Series.parse, table[name])) for name in names}})


class Rule(NamedTuple):
    """The definition of a problem: it is one while its conditions have held for ``for_s``.

    ``where`` must be found as well, and none of ``unless``. ``of_gateway``: The series are those of
    `storenode gateway`, not of a node. ``gives_reason``: Its sentence ends with the reason why the
    node is not ready.
    """

    page: str
    sentence: str
    condition: Condition
    where: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    critical: bool = False
    for_s: float = 0.0
    of_gateway: bool = False
    gives_reason: bool = False

    @classmethod
    def of(cls, table: dict[str, Any]) -> Rule:
        """Return the rule that a table defines."""
        names = {"where", "unless"} & table.keys()
        others = {name: tuple(map(Condition.of, table[name])) for name in names}
        return cls(**{**table, **others, "condition": Condition.of(table["condition"])})


_FILE: Final = files("store.observe").joinpath("problems.toml").read_text("utf-8")
_ALL: Final = tuple(map(Rule.of, tomllib.loads(_FILE)["problem"]))
RULES: Final = tuple(rule for rule in _ALL if not rule.of_gateway)
GATEWAY_RULES: Final = tuple(rule for rule in _ALL if rule.of_gateway)


class Problem(NamedTuple):
    """A problem that is present, or as it was last, since ``ended_s``.

    ``page``: the name of its runbook. ``since_s``: Unix seconds, at most since the start.
    """

    page: str
    critical: bool
    sentence: str
    since_s: float
    ended_s: float = 0.0

    @property
    def url(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOKS}{self.page}.md"


class Problems:
    """The problems that are present, evaluated periodically.

    ``ended``: those that ended within `ENDED_S`, the newest first. Durations are of ``steady_s``.
    """

    def __init__(
        self,
        metrics: object,
        now_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
        *,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self._rules = rules
        self._metrics = metrics
        self._now_s = now_s
        self._steady_s = steady_s
        self.ended: Sequence[Problem] = ()
        # The values of metrics at earlier evaluations, as far as they changed; and at this one.
        self._steps: dict[object, deque[tuple[float, float]]] = {}
        self._read: dict[Series, Vector] = {}
        # By rule and labels: when each began, by both clocks; those present; when others ended.
        self._since: dict[_Key, tuple[float, float]] = {}
        self._present: dict[_Key, Problem] = {}
        self._over: dict[_Key, tuple[float, Problem]] = {}

    def evaluate(self, unready: str | None = None) -> tuple[Problem, ...]:
        """Return the problems, critical ones first; ``unready``: why the node is not ready."""
        now_s = self._now_s()
        at_s = self._at_s = self._steady_s()
        self._read.clear()
        found: dict[_Key, Problem] = {}
        since: dict[_Key, tuple[float, float]] = {}
        for number, rule in enumerate(self._rules):
            for labels, value in self._vector_of(rule).items():
                key = number, tuple(each for each in labels if each[0] not in _DETAILS)
                began_at_s, since_s = since[key] = self._since.get(key, (at_s, now_s))
                if at_s - began_at_s < rule.for_s:
                    continue
                sentence = rule.sentence.format(
                    value=value, mib=value / _MIB, hours=value / 3_600, **dict(labels)
                )
                if unready is not None and rule.gives_reason:
                    sentence += f": {unready}"
                found[key] = Problem(rule.page, rule.critical, sentence, since_s)
        before = self._over | {
            key: (at_s, each._replace(ended_s=now_s)) for key, each in self._present.items()
        }
        self._over = {
            key: over
            for key, over in before.items()
            if key not in found and at_s - over[0] < ENDED_S
        }
        self._since, self._present = since, found
        self.ended = [problem for _, problem in reversed(self._over.values())][:MAX_ENDED]
        return tuple(sorted(found.values(), key=lambda each: (not each.critical, each.since_s)))

    def _vector_of(self, rule: Rule) -> Vector:
        """Return the values for which the conditions of a rule hold, by their labels."""
        # All are evaluated, whatever the others find: conditions look back.
        found, *where = map(self._find, (rule.condition, *rule.where))
        unless = list(map(self._find, rule.unless))
        return found if all(where) and not any(unless) else {}

    def _find(self, condition: Condition) -> Vector:
        """Return the values that meet a condition, by their labels."""
        bound, kind, window_s = condition.bound, condition.kind, condition.window_s
        if kind in ("grown", "large-share", "large-rest"):
            value = self._growth(condition.series, window_s)
            if kind != "grown":
                whole = self._growth(condition.whole, window_s)
                part = whole - value if kind == "large-rest" else value
                value = part / whole if whole else 0.0
            return {(): value} if value > bound else {}
        values = self._vector(condition.series[0])
        if condition.whole:
            bound = self._sum(condition.whole)
        if kind == "older":
            values = {key: self._now_s() - value for key, value in values.items() if value > 0}
        return {k: v for k, v in values.items() if self._is_met(condition, k, v, bound)}

    def _is_met(self, condition: Condition, key: Labels, value: float, bound: float) -> bool:
        match condition.kind:
            case "above" | "older":
                return value > bound
            case "beyond":
                return abs(value) > bound
            case "zero":
                return not value
            case "small-part":
                return value < condition.bound * self._vector(condition.whole[0]).get(key, 0)
        past = self._past((condition, key), value, condition.window_s, first=value)
        if condition.kind == "not-shrinking":
            covered_s = self._at_s - self._steps[condition, key][0][0]
            return covered_s >= condition.window_s and min(past) > 0 and value >= past[0]
        return max(past) > (value if condition.kind == "below-peak" else bound)

    def _vector(self, series: Series) -> Vector:
        if series not in self._read:
            metric, labels = getattr(self._metrics, series.metric), dict(series.labels)
            found = samples(metric, series.suffix, labels)
            self._read[series] = {tuple(labels.items()): value for labels, value in found}
        return self._read[series]

    def _sum(self, series: Sequence[Series]) -> float:
        return sum(sum(self._vector(each).values()) for each in series)

    def _growth(self, series: tuple[Series, ...], window_s: float) -> float:
        value = self._sum(series)
        return value - self._past((series, window_s), value, window_s, first=0.0)[0]

    def _past(self, key: object, value: float, window_s: float, first: float) -> list[float]:
        """Return the values within a window; a series had the value ``first`` before it was new."""
        steps = self._steps.setdefault(key, deque([(self._at_s, first)], maxlen=MAX_STEPS))
        if steps[-1][1] != value:
            steps.append((self._at_s, value))
        while len(steps) > 1 and steps[1][0] <= self._at_s - window_s:
            steps.popleft()
        return [each for _, each in steps]
