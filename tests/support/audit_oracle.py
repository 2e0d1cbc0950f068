"""The expected result of an audit, computed one message at a time: slow, and plain to see.

A claim is (channel, message ID, Lamport timestamp or None, time, first word of the hash, parents).
"""

from __future__ import annotations

from dataclasses import dataclass, field

Name = tuple[str, str]
"""A channel and a message ID."""

Claim = tuple[str, str, int | None, int, int, list[str]]


@dataclass
class Channel:
    """The counts of a channel; ``point`` is its last complete one: (Lamport, ID, time)."""

    counts: dict[str, int]
    point: tuple[int, str, int] | None


@dataclass
class Audited:
    """The result of an audit."""

    missing: set[tuple[str, str, str]] = field(default_factory=set)
    incomplete: set[Name] = field(default_factory=set)
    heads: set[Name] = field(default_factory=set)
    orphans: set[Name] = field(default_factory=set)
    violations: set[tuple[str, str, str]] = field(default_factory=set)
    cycles: dict[Name, str] = field(default_factory=dict)
    claimed: list[tuple[str, str, int]] = field(default_factory=list)
    channels: dict[str, Channel] = field(default_factory=dict)


def audited(claims: list[Claim]) -> Audited:
    """Audit some claims."""
    found = Audited()
    parents: dict[Name, set[str]] = {}
    clock: dict[Name, int] = {}
    time: dict[Name, int] = {}
    times: dict[Name, int] = {}
    for channel, name, lamport, ts, _, named in claims:
        key = (channel, name)
        parents.setdefault(key, set()).update(named)
        clock[key] = min(clock.get(key, 2**64), lamport or 0)
        time[key] = min(time.get(key, 2**63), ts)
        times[key] = times.get(key, 0) + 1
    past = {key: _past(key, parents) for key in parents}
    for key, names in parents.items():
        channel, name = key
        others = names - {name}
        present = {parent for parent in others if (channel, parent) in parents}
        found.missing |= {(channel, name, parent) for parent in others - present}
        if any(each not in parents for each in past[key]):
            found.incomplete.add(key)
        if not any(name in parents[c, n] for c, n in parents if c == channel and n != name):
            found.heads.add(key)
        if others and not present:
            found.orphans.add(key)
        for parent in names:
            if (channel, parent) in parents and clock[key] <= clock[channel, parent]:
                found.violations.add((channel, name, parent))
        if key in past[key]:
            found.cycles[key] = min(n for c, n in past[key] if key in past.get((c, n), ()))
    found.claimed = sorted((c, n, ts) for c, n, _, ts, _, _ in claims if times[c, n] > 1)
    for channel in {channel for channel, _ in parents}:
        ids = [_Id(n, clock[c, n], time[c, n], times[c, n]) for c, n in parents if c == channel]
        found.channels[channel] = _channel(channel, sorted(ids, key=_in_order), parents, found)
    return found


@dataclass(frozen=True)
class _Id:
    name: str
    clock: int
    time: int
    claimants: int


def _in_order(each: _Id) -> tuple[int, str]:
    return each.clock, each.name


def _past(key: Name, parents: dict[Name, set[str]]) -> set[Name]:
    """Return all that an ID refers to, at any depth; itself too where it is on a cycle."""
    seen: set[Name] = set()
    waiting = [key]
    while waiting:
        channel, name = waiting.pop()
        for parent in parents.get((channel, name), ()):
            if (channel, parent) not in seen:
                seen.add((channel, parent))
                waiting.append((channel, parent))
    return seen


def _channel(
    channel: str, ids: list[_Id], parents: dict[Name, set[str]], found: Audited
) -> Channel:
    names = [each.name for each in ids]
    others = {name: parents[channel, name] - {name} for name in names}
    children = {name: sum(name in others[each] for each in names) for name in names}
    point = None
    for each in ids:
        if (channel, each.name) in found.incomplete:
            break
        point = (each.clock, each.name, each.time)
    counts = {
        "messages": len(names),
        "copies": sum(each.claimants - 1 for each in ids),
        "missing": len({parent for c, _, parent in found.missing if c == channel}),
        "incomplete": sum(c == channel for c, _ in found.incomplete),
        "heads": sum(c == channel for c, _ in found.heads),
        "roots": sum(not others[name] for name in names),
        "forks": sum(children[name] > 1 for name in names),
        "merges": sum(len(others[name]) > 1 for name in names),
        "violations": sum(c == channel for c, _, _ in found.violations),
        "orphans": sum(c == channel for c, _ in found.orphans),
        "cycles": len({name for (c, _), name in found.cycles.items() if c == channel}),
    }
    return Channel(counts, point)
