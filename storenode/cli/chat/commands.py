"""The commands of a chat: lines that begin with a slash and are not sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storenode.cli.chat.limits import MAX_LISTED
from storenode.cli.chat.words import MEANING, lacks_of, owed_of, standing, state_of
from storenode.cli.client.text import counted, safe

if TYPE_CHECKING:
    from storenode.cli.chat.transcript import Transcript
    from storenode.sds.aio.channel import Channel
    from storenode.sds.events import MissingMessage

_SHORT_ID_CHARS = 16

KEYS: Final = (
    (
        "Keys: Enter sends, Alt-Enter begins a new row, Tab completes names and commands, Up and "
        "Down recall what was written, Ctrl-C discards what is being written, or leaves."
    ),
    (
        "Marks of your own lines: … not sent yet, · stored by a node, ? probably received, ✓ "
        "received by somebody, ✗ refused or given up."
    ),
)


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The rows that a command prints, and whether the user wants to leave."""

    rows: tuple[str, ...] = ()
    leave: bool = False


class Commands:
    """The commands of a chat; ``keys`` are explained where there are any."""

    def __init__(
        self, channel: Channel, transcript: Transcript, keys: tuple[str, ...] = ()
    ) -> None:
        self._channel = channel
        self._people = transcript.people
        self._forgeries = transcript.forged
        self._keys = keys
        self._known: dict[str, tuple[str, Callable[[], CommandAnswer]]] = {
            "/help": ("this list", self._help),
            "/names": (
                "who takes part, who has what is not here, and who lacks what is",
                self._names,
            ),
            "/missing": ("what is missing, and what is done about it", self._missing),
            "/forged": ("what was said under the ID of another line", self._forged),
            "/status": ("the connection, and what has become of your lines", self._status),
            "/quit": ("leave", lambda: CommandAnswer(leave=True)),
        }

    @property
    def names(self) -> list[str]:
        """The names of all commands."""
        return list(self._known)

    def said(self, text: str) -> CommandAnswer | str:
        """Run a command and return its answer, or return the text to send.

        Two slashes at the beginning send a line that begins with one.
        """
        if not text.startswith("/"):
            return text
        if text.startswith("//"):
            return text[1:]
        name = text.split(maxsplit=1)[0]
        known = self._known.get(name.lower())
        if known is None:
            hint = f"To say a line that begins with a slash, write /{safe(name)}."
            return CommandAnswer((f"There is no command {safe(name)}: /help lists them. {hint}",))
        return known[1]()

    def _help(self) -> CommandAnswer:
        rows = [f"{name:<9} {what}" for name, (what, _) in self._known.items()]
        return CommandAnswer((*rows, "//…       say a line that begins with a slash", *self._keys))

    def _names(self) -> CommandAnswer:
        others = self._people.by_name()
        own = f"{safe(self._people.own)}: you"
        if self._people.namesakes:
            own += ", and somebody else who writes under the same name"
        lacking = self._channel.lacking()
        rows = [standing(*each, lacking.get(each[0], 0)) for each in others[:MAX_LISTED]]
        said = f"{counted(len(others) + 1, 'participant')} heard so far:"
        return CommandAnswer((said, own, *rows, *_rest(len(others))))

    def _missing(self) -> CommandAnswer:
        missing = self._channel.missing()
        status = self._channel.status
        said = lacks_of(status)
        if not said:
            more = "" if status.live else "; the history is still being read"
            return CommandAnswer((f"Nothing is missing as far as is known here{more}.",))
        rows = [_lack(each) for each in missing[:MAX_LISTED]]
        waiting = (
            [f"Not shown until then: {counted(status.waiting, 'message')} in answer to it."]
            if status.waiting
            else []
        )
        ahead = [standing(*each) for each in self._people.by_name() if each[1].ahead]
        how = (
            ["The node is asked for them, and participants that have them send them again."]
            if missing
            else []
        )
        return CommandAnswer(
            (
                "; ".join(said) + ".",
                *rows,
                *_rest(len(missing)),
                *waiting,
                *how,
                *ahead[:MAX_LISTED],
            )
        )

    def _forged(self) -> CommandAnswer:
        count = self._channel.counts.forged
        if not count:
            return CommandAnswer(("No forged line has been seen.", MEANING))
        rows = [f"  {row}" for row in list(self._forgeries)[-MAX_LISTED:]]
        return CommandAnswer(
            (f"{counted(count, 'forged line')} since the first run:", *rows, MEANING)
        )

    def _status(self) -> CommandAnswer:
        status = self._channel.status
        rows = [state_of(status) + "."]
        if not owed_of(status):
            rows.append("All of your lines were received by somebody, or you said none.")
        if forged := self._channel.counts.forged:
            rows.append(f"{counted(forged, 'forged line')} came: /forged lists them.")
        if status.incomparable:
            peers = counted(status.incomparable, "participant")
            rows.append(
                f"{peers} send nothing by which it shows whether something is missing here."
            )
        return CommandAnswer(tuple(rows))


def _lack(message: MissingMessage) -> str:
    who = f" of {safe(message.sender_id)}" if message.sender_id else ""
    known = "" if message.hints else ", known by its ID alone"
    return f"  {safe(message.message_id)[:_SHORT_ID_CHARS]}{who}{known}"


def _rest(count: int) -> tuple[str, ...]:
    return (f"  and {count - MAX_LISTED:,} more",) if count > MAX_LISTED else ()
