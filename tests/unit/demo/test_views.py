"""The screen of the demo at its smallest: everything fits, and a gap is seen until it heals."""

import asyncio
import io
import re

from rich.console import Console

from store.demo.conversation import LOST, READER, SCRIPT, Conversation
from store.demo.network import Network
from store.demo.scene import Scene
from store.demo.tables import COLUMNS, LEGEND, legend_line
from store.demo.tap import Way
from store.demo.tasks import Tasks
from store.demo.views import MIN_COLUMNS, MIN_ROWS, picture
from storenode.sds.aio.events import Message
from storenode.sds.codec import Kind
from storenode.sds.events import Missing, MissingMessage, Received

IDS = [f"id {number}" for number in range(len(SCRIPT))]


def shown(scene: Scene) -> list[str]:
    console = Console(width=MIN_COLUMNS, file=io.StringIO(), force_terminal=False)
    console.print(picture(scene, MIN_COLUMNS, MIN_ROWS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def received(number: int) -> Received:
    return Received(IDS[number], Kind.CONTENT, SCRIPT[number][0])


def delivered(number: int) -> Message:
    who, text = SCRIPT[number]
    return Message(IDS[number], who, number, text.encode())


async def scene_of(conversation: Conversation) -> Scene:
    scene = Scene(Tasks(), Network())
    scene.conversation = conversation
    scene.tell("One conversation", chapter=True)
    for number in range(30):
        scene.tell(f"something {number}")
    return scene


def test_a_gap_is_seen_until_the_line_is_back() -> None:
    told: list[str] = []
    came = {IDS[LOST]: Way.ID}
    talk = Conversation(came, told.append)
    for number in range(LOST):
        talk.note(received(number))
        talk.note(delivered(number))
    talk.note(received(LOST + 1))
    for _ in range(2):
        talk.note(Missing((MissingMessage(IDS[LOST]),)))
    lines = shown(asyncio.run(scene_of(talk)))
    (gap,) = [at for at, line in enumerate(lines) if "missing for" in line]
    assert "waits for its parent" in lines[gap + 1]
    assert SCRIPT[LOST - 1][1] in lines[gap - 1]
    assert [row.text for row in talk.rows][LOST:] == ["", ""]

    talk.note(delivered(LOST))
    talk.note(delivered(LOST + 1))
    talk.note(received(LOST + 2))
    talk.note(delivered(LOST + 2))
    lines = shown(asyncio.run(scene_of(talk)))
    assert not [line for line in lines if "missing for" in line or "waits for its" in line]
    assert SCRIPT[LOST][1] in lines[gap]
    assert re.search(r"back after \d+\.\d s, from a store node, by ID$", lines[gap])
    assert talk.whole
    assert [line.split()[:2] for line in told] == [[READER, "misses"], [READER, "has"]]
    assert told[1].endswith("from a store node, by ID")


def test_the_screen_fits_the_smallest_terminal() -> None:
    talk = Conversation({}, lambda _: None)
    for number in range(len(SCRIPT)):
        talk.note(delivered(number))
    scene = asyncio.run(scene_of(talk))
    for over in (False, True):
        talk.over = over
        lines = shown(scene)
        assert len(lines) <= MIN_ROWS
        assert max(map(len, lines)) <= MIN_COLUMNS
        assert not [line for line in lines if "…" in line]
    talk.over = False
    screen = "\n".join(shown(scene))
    assert all(word in screen and meaning in screen for word, meaning in LEGEND)


def test_every_word_of_the_tables_has_its_turn() -> None:
    lines = {str(legend_line(elapsed_s)) for elapsed_s in range(200)}
    assert lines == {f"{word}: {meaning}" for word, meaning in COLUMNS}
    assert max(map(len, lines)) <= MIN_COLUMNS
