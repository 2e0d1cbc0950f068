"""The state of a run and its end as tables, for a terminal or a page of text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from store.demo.cluster import NODES
from store.demo.conversation import READER, Conversation, Row, origin
from store.demo.people import People, Person
from store.demo.scene import Scene
from store.demo.tap import Way
from store.demo.verdict import Verdict
from store.demo.watch import SOURCES

LEGEND: Final = (
    ("SDS message", "a line of a conversation, with the IDs of its parents"),
    ("parent", "a message that the sender of this one saw last"),
    ("missing", "named as a parent, and not here; what names it waits"),
    ("store node", "n1 to n3: keeps every message, and serves it to those who lack it"),
    ("gossip", "store nodes tell each other of new messages at once"),
    ("sync", "reconciliation: two store nodes compare, and send the differences"),
    ("resume", "a store node that was down reads what it missed from another"),
    ("SDS-R", "SDS-Repair: a participant sends again what no store node has"),
)
"""Words of the screen and of the summary, at most 76 columns with their meaning."""

COLUMNS: Final = (
    ("holds, lacks", "messages in a store node; acknowledged by one and not here yet"),
    ("client, gossip, sync, resume", "by which way a store node came by its messages"),
    *LEGEND[4:],
    ("log", "messages in a participant's log, in causal order"),
    ("lost, back", "what a bad link (*) has lost, and how much of it is back"),
    ("missing", "named as a parent by a message that is here"),
    ("gave up", "what a participant stopped asking for"),
)

_WORD_S: Final = 4.0
_WAYS: Final = tuple(Way)
_GOOD, _BAD, _BUSY, _FAINT = "green", "bold red", "yellow", "dim"


def nodes_now(scene: Scene) -> Table:
    """What each node holds and lacks now, how it came by it, and how fast."""
    table = _table(
        "node", "state", ">holds", ">lacks", *_numbers("client gossip sync resume msg/s")
    )
    now_s = time.monotonic()
    for name in NODES:
        state = scene.troubles.get(name, "serves" if scene.auditor else "starting")
        row = [Text(name), Text(state, _GOOD if state == "serves" else _BAD)]
        if scene.auditor is not None and scene.watch is not None:
            node, lacks = scene.auditor.nodes[name], scene.auditor.lacks(name)
            total = scene.watch.sources[name].total
            row += [_number(len(node.held)), _number(lacks, _BUSY)]
            row += [_number(total[source]) for source in SOURCES]
            row.append(_number(round(node.rate(now_s))))
        table.add_row(*row)
    return table


def sessions_now(scene: Scene) -> Text:
    """How many reconciliations there were, and what the last one found."""
    text = f"{scene.sessions} syncs"
    if scene.last_session is not None:
        text += f"; {scene.last_session} in {scene.last_session.report.seconds:.1f} s"
    return Text(text, _FAINT, no_wrap=True, overflow="ellipsis")


def people_now(scene: Scene) -> Table:
    """How each participant is now, what its link has lost, and how much of that is back."""
    table = _table(
        "channel", "who", "node", "state", *_numbers("log lost missing back SDS-R"), "gave up"
    )
    for person in scene.people or ():
        table.add_row(*_person(scene, person))
    return table


def _person(scene: Scene, person: Person) -> list[Text]:
    status, recovered = person.look(), person.recovered
    here = person.here
    state = ("missing" if status.missing or status.waiting else str(status)) if here else "away"
    style = _GOOD if status.synced else _BUSY if here else _FAINT
    place = scene.network.node_at(status.node)
    return [
        Text(person.who.channel_id),
        Text(person.who.name + ("*" if person.loses else "")),
        Text(place),
        Text(state.partition(",")[0], style),
        _number(person.length),
        _number(len(person.passage.lost)),
        _number(status.missing, _BUSY),
        _number(len(recovered)),
        _number(sum(way is Way.SDS_REPAIR for way in recovered.values())),
        _number(status.lost, _BAD),
    ]


def conversation_now(conversation: Conversation) -> Group:
    """The conversation as its reader has it: a gap stays visible after it has healed."""
    head = Text(f"What {READER} has of the conversation in atlas", "bold")
    return Group(head, *(_said(conversation, row) for row in conversation.rows))


def _said(conversation: Conversation, row: Row) -> Text:
    made = Text("  ", no_wrap=True, overflow="ellipsis")
    if row.missing_s is None:
        made.append(f"{row.who:<6}")
        return made.append(
            row.text or "(waits for its parent, the missing line)", "" if row.text else _FAINT
        )
    gap_s = conversation.gap_s(row)
    if row.back_s is None:
        made.append("?     ", _BAD)
        return made.append(f"missing for {gap_s:.1f} s: named as a parent, and not here", _BAD)
    made.append(f"{row.who:<6}{row.text}", _GOOD)
    return made.append(f"  back after {gap_s:.1f} s, {origin(row.way)}", _FAINT)


def legend() -> Group:
    """What the words on the screen mean."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for word, meaning in LEGEND:
        table.add_row(Text(word, "bold"), Text(meaning))
    return Group(table)


def legend_line(elapsed_s: float) -> Text:
    """One word of the screen and its meaning; another one every few seconds."""
    word, meaning = COLUMNS[int(elapsed_s / _WORD_S) % len(COLUMNS)]
    made = Text(no_wrap=True, overflow="ellipsis")
    made.append(word, "bold")
    return made.append(f": {meaning}", _FAINT)


def story_now(scene: Scene, count: int) -> Group:
    """The last things that happened, at most so many."""
    shown = list(scene.lines)[-count:] if count > 0 else []
    return Group(*(line_text(line.at_s, line.text, chapter=line.chapter) for line in shown))


def line_text(at_s: float, text: str, *, chapter: bool) -> Text:
    """One line of the story; it is cut where the screen ends."""
    style = "bold" if chapter else ""
    made = Text(no_wrap=True, overflow="ellipsis")
    made.append(f"{at_s:6.1f} s  ", _FAINT)
    made.append(text if chapter else f"  {text}", style)
    return made


def summary(scene: Scene, verdict: Verdict) -> Iterable[RenderableType]:
    """The end: what was lost where, how it came back, and whether all is well."""
    yield Text(f"{scene.elapsed_s:.0f} seconds, {scene.sessions} reconciliations\n", _FAINT)
    yield Text("What the nodes lacked when a fault was over, and how it came back", "bold")
    yield _incidents(scene)
    yield Text(
        "What was new meanwhile is counted too, and what gossip and a sync bring at once"
        " counts for the one that was first.\n",
        _FAINT,
    )
    yield Text("How the nodes came by what they hold", "bold")
    yield _sources(scene, verdict)
    yield Text("uncounted: stored by a node between its last answer and its being killed\n", _FAINT)
    if scene.people is not None:
        yield Text("What the participants lacked, and how it came to them", "bold")
        yield _recovered(scene.people)
        yield Text(
            "later: by the feed; cursor, scan: after an absence; hint, ID, causal: asked of\n"
            "nodes; SDS-R: asked of participants\n",
            _FAINT,
        )
    yield from _conclusion(scene, verdict)


def _incidents(scene: Scene) -> Table:
    table = _table("node", "what", *_numbers("lacked gossip sync resume took"), "all back")
    for each in scene.incidents:
        table.add_row(
            Text(each.node),
            Text(each.what),
            _number(each.lacked),
            *(_number(each.ways[source]) for source in SOURCES if source != "client"),
            Text(f"{each.seconds:.1f} s"),
            Text("yes", _GOOD) if each.whole else Text("no", _BAD),
        )
    return table


def _sources(scene: Scene, verdict: Verdict) -> Table:
    table = _table("node", *_numbers("holds published gossip sync resume uncounted"))
    for name in NODES:
        assert scene.watch is not None
        total, held = scene.watch.sources[name].total, len(verdict.held.get(name, ()))
        counts = [total[source] for source in SOURCES]
        # A node that is killed takes with it what it has counted since it was last asked.
        table.add_row(Text(name), *map(_number, [held, *counts, held - sum(counts)]))
    return table


def _recovered(people: People) -> Table:
    heads = ("later", "cursor", "scan", "hint", "ID", "causal", "SDS-R")
    table = _table("what", ">all", *(f">{head}" for head in heads), ">gone")
    for what, lacked, ways in _losses(list(people)):
        back = sum(ways.values())
        cells = [_number(ways[way]) for way in _WAYS]
        table.add_row(Text(what), _number(lacked), *cells, _number(lacked - back, _BAD))
    return table


def _losses(people: Sequence[Person]) -> Iterable[tuple[str, int, Counter[Way]]]:
    lost: Counter[Way] = Counter()
    named: Counter[Way] = Counter()
    away: Counter[Way] = Counter()
    lost_count = named_count = 0
    for person in people:
        passage = person.passage
        others = person.missed - passage.lost - set(person.said)
        lost_count += len(passage.lost)
        named_count += len(others)
        for message_id, way in passage.came.items():
            if message_id in passage.lost:
                lost[way] += 1
            elif message_id in others:
                named[way] += 1
            elif way in (Way.CURSOR, Way.SCAN):
                away[way] += 1
    yield "lost on a bad link", lost_count, lost
    yield "named by others", named_count, named
    yield "said while away", away.total(), away


def _conclusion(scene: Scene, verdict: Verdict) -> Iterable[Text]:
    if verdict.differences:
        yield Text("Not everything is everywhere:", _BAD)
        for difference in verdict.differences:
            yield Text(f"  {difference}", _BAD)
        return
    held = len(verdict.held[NODES[0]])
    lines = sum(len(said) for said in scene.ledger.said.values())
    yield Text(
        f"The {len(NODES)} stores are equal: {held:,} messages, by hashes computed anew.",
        _GOOD,
    )
    people, channels = len(list(scene.people or ())), len(scene.ledger.said)
    yield Text(
        f"The {people} logs are equal: all {lines:,} lines of {channels} channels, in one order.\n",
        _GOOD,
    )
    yield from _shown(scene)


def _shown(scene: Scene) -> Iterable[Text]:
    """What a run has shown in plain words, and what to try next: at most 80 columns."""
    talk = scene.conversation
    if talk is not None and talk.gap is not None and talk.gap.back_s is not None:
        gap = talk.gap
        yield Text("What you saw", "bold")
        yield Text(f"  {READER} missed a line; the next line named it as its parent, so she knew.")
        yield Text(f"  She had it {talk.gap_s(gap):.1f} s later, {origin(gap.way)}.")
    for each in scene.incidents:
        if each.whole:
            yield Text(f"  {each.node}, {each.what}: had all it lacked after {each.seconds:.1f} s.")
    yield Text("What to try next", "bold")
    yield Text("  storenode demo --without gossip    the same with reconciliation alone")
    yield Text("  storenode run --help               a node of your own")
    yield Text("  storenode chat --help              talk in a channel on it")


def _table(*heads: str) -> Table:
    """A table without lines; a head that begins with ``>`` is over numbers."""
    columns = [
        Column(
            head.removeprefix(">"),
            justify="right" if head.startswith(">") else "left",
            no_wrap=True,
            header_style=_FAINT,
        )
        for head in heads
    ]
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _numbers(heads: str) -> list[str]:
    return [f">{head}" for head in heads.split()]


def _number(value: int, style: str = "") -> Text:
    return Text(f"{value:,}" if value else "-", style if value else _FAINT)
