"""`storenode demo`: the whole system at work on one machine."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from storenode.cli.client.text import safe
from storenode.cli.errors import FAILED, OK, USAGE, CliError, mute_library
from storenode.cli.options.layers import LayeredCommand, option
from storenode.cli.options.types import POSITIVE_DURATION
from storenode.message.limits import NS_PER_S
from storenode.message.text import printable_lines

LIBRARIES: Final = ("rich", "trustme")
"""The libraries of the extra; the embedded Postgres has an error of its own."""
_PARTS: Final = ("gossip", "reconciliation", "repair")
_PATIENCE_S: Final = (300.0, 15.0)
"""Patience of a whole demo, and of one in which not everything may come back."""


@click.command(cls=LayeredCommand)
@option("--plain", is_flag=True, help="Print without colours, also on a terminal.")
@option(
    "--pace",
    type=click.FloatRange(0.1, 10.0),
    default=1.0,
    show_default=True,
    help="Make the phases this many times shorter.",
)
@option(
    "--patience",
    type=POSITIVE_DURATION,
    help="Give up a wait in which nothing changes for so long.  [default: 5m, --without: 15s]",
)
@option(
    "--limit",
    type=POSITIVE_DURATION,
    default="20m",
    show_default=True,
    help="Give up all waits after this time, and print the verdict.",
)
@option(
    "--without",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Switch a part off, to see what the others do alone; repeatable.",
)
@option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep databases, certificates and logs there; by default they are removed.",
)
def demo(
    *,
    plain: bool,
    pace: float,
    patience: int | None,
    limit: int,
    without: tuple[str, ...],
    keep: Path | None,
) -> int:
    """Show the whole system at work: nodes, participants, faults, and how all is healed.

    Three nodes with a Postgres each talk TLS with each other; twelve SDS participants talk in four
    channels. Links lose messages, a node is cut off, another is killed. It ends by itself after
    about a minute, or later on a busy machine, with a table of what was lost where and how it came
    back. The exit code is 0 when all stores and logs are equal, 1 if not, 4 if time ran out first.
    """
    mute_library()
    require_libraries("demo", LIBRARIES)
    # Imported here, after its extra was looked for.
    from chaos.checker.clients import NoAnswerError  # noqa: PLC0415
    from chaos.demo import report, story  # noqa: PLC0415
    from chaos.node import NodeFailedError  # noqa: PLC0415

    patience_s = _PATIENCE_S[bool(without)] if patience is None else patience / NS_PER_S
    try:
        with _directory(keep) as directory:
            plan = story.Plan(directory, pace, patience_s, limit / NS_PER_S, frozenset(without))
            kept = f"Logs and databases are in {directory}."
            if code := asyncio.run(story.run(plan, report.ConsoleReport(no_color=plain))):
                raise CliError(code, f"{story.ENDINGS[code]} {kept}")
    except asyncio.CancelledError:
        raise click.Abort from None
    except NodeFailedError as error:
        click.echo(printable_lines(error.tail), err=True)
        raise CliError(FAILED, error.sentence) from error
    except NoAnswerError as error:
        raise CliError(FAILED, f"{safe(str(error))} {kept}") from error
    return OK


def require_libraries(extra: str, libraries: Sequence[str]) -> None:
    """Raise `CliError` if a library of an extra is missing, which is named like its command."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise CliError(
            USAGE,
            f"The {extra} needs {missing[0]}, which is not installed: install storenode with the"
            f" extra `{extra}`, as with `pip install 'storenode[{extra}]'`.",
        )


@contextmanager
def _directory(named: Path | None) -> Iterator[Path]:
    """Make the directory of a run: the named one, or a temporary one.

    The latter is removed at the end, unless something went wrong that can be looked into.

    Raises:
        CliError: It cannot be used.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix="storenode-demo-")) if named is None else named
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise CliError(USAGE, f"The directory {path} is not empty: name a new one.")
    except OSError as error:
        raise CliError(
            USAGE, f"The directory {error.filename} cannot be used: {error.strerror}."
        ) from error
    is_removed = named is None
    try:
        yield path.absolute()
    except Exception as error:
        is_removed &= isinstance(error, BrokenPipeError)
        raise
    finally:
        if is_removed:
            shutil.rmtree(path, ignore_errors=True)
