"""Where a line is written: several rows, emoji as one character, names and commands completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os.path import commonprefix
from typing import TYPE_CHECKING

from prompt_toolkit.layout import Dimension
from prompt_toolkit.layout.processors import Processor, Transformation
from prompt_toolkit.widgets import TextArea
from wcwidth import iter_graphemes

from storenode.cli.chat.layout import RAW
from storenode.cli.chat.limits import MAX_ENTRY_ROWS

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.layout.processors import TransformationInput

_PROMPT = "> "


def entry_of(entered: Callable[[Buffer], bool]) -> TextArea:
    """A field of 1 to 8 rows; ``entered`` is given what was written."""
    return TextArea(
        height=Dimension(min=1, max=MAX_ENTRY_ROWS),
        dont_extend_height=True,
        multiline=True,
        wrap_lines=True,
        accept_handler=entered,
        get_line_prefix=lambda number, wraps: _PROMPT if not number + wraps else "  ",
        input_processors=[_WholeClusters()],
    )


def completed(before: str, names: Iterable[str], commands: Iterable[str]) -> str:
    """What is to be written before the cursor when its last word is completed.

    That is a name of a participant or, at the beginning, a command; as much of it as is certain.
    """
    word = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    first = before == word
    if first and word.startswith("/"):
        known = tuple(commands)
    else:
        known = tuple(f"{name}: " if first else f"{name} " for name in names)
    fitting = [each for each in known if word and each.casefold().startswith(word.casefold())]
    certain = commonprefix(fitting)  # noqa: RUF071 - of characters
    return before[: len(before) - len(word)] + certain if len(certain) >= len(word) else before


class _WholeClusters(Processor):
    """Hands what follows the first character of a joined emoji to the terminal as it is."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Characters without a cell of their own are shown where the emoji is."""
        fragments = transformation_input.fragments
        text = "".join(fragment[1] for fragment in fragments)
        if text.isascii():
            return Transformation(fragments)
        styles = [fragment[0] for fragment in fragments for _ in fragment[1]]
        shown: StyleAndTextTuples = []
        places: list[int] = []
        cell = 0
        for cluster in iter_graphemes(text):
            style = styles[len(places)]
            rest = cluster[1:] if "\u200d" in cluster else ""
            seen = cluster[0] if rest else cluster
            shown.append((style, seen))
            shown += [(RAW, rest)] if rest else []
            places += [cell + min(at, len(seen) - 1) for at in range(len(cluster))]
            cell += len(seen)
        places.append(cell)
        return Transformation(
            shown,
            source_to_display=lambda at: places[min(at, len(places) - 1)],
            display_to_source=lambda at: next(
                (source for source, place in enumerate(places) if place >= at), len(places) - 1
            ),
        )
