"""Options that are set by flag, environment variable or configuration file.

A flag wins over the environment, the environment over the file, the file over the default. The
variable of `--sync-interval` is `STORENODE_SYNC_INTERVAL`; an empty variable counts as unset. In
the file (TOML) the key is `sync-interval` or `sync_interval`, at the top for every command that
has the option, or in a table named after the command, `[run]` or `[db.prune]`, for that one.
Options that may be repeated are lists in the file, and one text with commas or white space
between the elements in the environment.

A command takes part by `@click.command(cls=LayeredCommand)`, its options by `@option(...)`.
"""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import click

from storenode.cli.options.types import split_list

ENV_PREFIX: Final = "STORENODE_"
CONFIG_META: Final = "storenode.config_file"
"""Key in `click.Context.meta` under which the path of the file in use is kept."""

MAX_CONFIG_BYTES: Final = 1024 * 1024
_CONFIG = "config"
_EPILOG: Final = (
    "Every option can also be set by an environment variable, --sync-range by"
    f" {ENV_PREFIX}SYNC_RANGE, and in the file of --config. Durations read 90s, 5m, 1h, 30d; sizes"
    " 64KiB, 10GiB."
)


class LayeredOption(click.Option):
    """An option with a section in the help text, and lists in its environment variable."""

    def __init__(
        self,
        param_decls: Sequence[str] | None = None,
        section: str = "Options",
        **kwargs: Any,  # noqa: ANN401 - those of click.Option, unchanged
    ) -> None:
        super().__init__(param_decls, **kwargs)
        self.section = section

    def value_from_envvar(self, ctx: click.Context) -> str | Sequence[str] | None:
        """Return the value of the variable, in parts where the option may be repeated."""
        if not self.multiple:
            value: str | Sequence[str] | None = super().value_from_envvar(ctx)
            return value
        text = self.resolve_envvar_value(ctx)
        return None if text is None else split_list(text)


option = functools.partial(click.option, cls=LayeredOption)
"""Like `click.option`, for commands of class `LayeredCommand`."""

_F = TypeVar("_F", bound=Callable[..., Any])


def with_options(*each: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return a decorator that adds several options, in this order."""

    def add(command: _F) -> _F:
        return functools.reduce(lambda given, one: one(given), reversed(each), command)

    return add


class LayeredCommand(click.Command):
    """A command whose options also come from the environment and from a file.

    Attributes:
        removed: By the flag of an option that was removed, what replaced it.
        table: The table of the file that has its options; empty: that of its own name.
    """

    removed: ClassVar[Mapping[str, str]] = {}
    table: ClassVar[str] = ""

    def __init__(
        self,
        name: str | None,
        **kwargs: Any,  # noqa: ANN401 - those of click.Command, unchanged
    ) -> None:
        kwargs.setdefault("epilog", _EPILOG)
        super().__init__(name, **kwargs)
        self.params.append(_config_option())
        for param in _options_of(self):
            param.envvar = param.envvar or ENV_PREFIX + option_name(param).upper()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section, in the order in which the sections first appear."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and self.shows(ctx, param):
                section = getattr(param, "section", "Options")
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)

    def shows(self, ctx: click.Context, param: click.Parameter) -> bool:  # noqa: ARG002
        """Return True if the help text has this option."""
        return True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            click.UsageError: An option is unknown, was removed, or is given twice.
        """
        for flag in self.removed:
            variable = f"{ENV_PREFIX}{flag[2:].replace('-', '_').upper()}"
            if os.environ.get(variable) and not ctx.resilient_parsing:
                raise click.UsageError(self.replaced(flag, variable), ctx)
        try:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        except click.NoSuchOption as error:
            if error.option_name in self.removed:
                raise click.UsageError(self.replaced(error.option_name), ctx) from None
            hidden = {flag for each in _options_of(self) if each.hidden for flag in each.opts}
            near = [each for each in error.possibilities or () if each not in hidden]
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None
        for param, times in Counter(order).items():
            may_repeat = not isinstance(param, click.Option) or param.multiple or param.count
            if times > 1 and not may_repeat:
                flag = max(param.opts, key=len)
                raise click.UsageError(f"{flag} is given {times} times: give it once.", ctx)
        return super().parse_args(ctx, args)

    def replaced(self, flag: str, place: str = "") -> str:
        """Return the sentence that refuses a removed option, which ``place`` sets."""
        set_by = f"{place} is set, and " if place else ""
        return f"{set_by}{flag} was removed: {self.removed[flag]}."


def option_name(param: click.Parameter) -> str:
    """Return the name of an option in a file, with underscores: that of its longest flag."""
    flag = max((flag for flag in param.opts if flag.startswith("-")), key=len)
    return flag.lstrip("-").replace("-", "_")


def where_from(error: click.BadParameter) -> str:
    """Name what a bad value came from: the flag, the variable, or the key and its file."""
    param, ctx = error.param, error.ctx
    if not isinstance(param, click.Option) or ctx is None:
        hint = error.param_hint
        return hint if isinstance(hint, str) else "the command line"
    source = ctx.get_parameter_source(param.name)
    if source is click.core.ParameterSource.ENVIRONMENT and isinstance(param.envvar, str):
        return param.envvar
    if source is click.core.ParameterSource.DEFAULT_MAP:
        return f"{option_name(param)} in {ctx.meta.get(CONFIG_META)}"
    return max(param.opts, key=len)


def _config_option() -> LayeredOption:
    return LayeredOption(
        ["--config"],
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load,
        help='TOML file with options: `listen = "..."` at the top or in a table `[command]`.',
    )


def _options_of(command: click.Command) -> Iterator[click.Option]:
    return (param for param in command.params if isinstance(param, click.Option))


def _load(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    ctx.meta[CONFIG_META] = str(path)
    named = f"The configuration file {path}"
    data = read_file(path, named, MAX_CONFIG_BYTES, ": name a readable TOML file with --config")
    try:
        document = tomllib.loads(data.decode())
    except ValueError as error:
        raise click.UsageError(f"{named} is not TOML: {error}.") from error
    ctx.default_map = _values_for(ctx, document, path)


def read_file(path: Path, named: str, limit_bytes: int, advice: str = "") -> bytes:
    """Read a file that an option names, of at most ``limit_bytes``.

    Raises:
        click.UsageError: It cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise click.UsageError(f"{named} cannot be read ({error.strerror}){advice}.") from error
    if len(data) > limit_bytes:
        raise click.UsageError(f"{named} has more than {limit_bytes} bytes{advice}.")
    return data


def _values_for(ctx: click.Context, document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the values for the command of `ctx`; refuse those that no command could use."""
    commands = dict(_commands(ctx.find_root()))
    absent = _absent(ctx.find_root())
    own_path = getattr(ctx.command, "table", "") or ".".join(ctx.command_path.split()[1:])
    values: dict[str, Any] = {}
    for name, table in _tables(document):
        if name.partition(".")[0] in absent:
            continue
        if name and name not in commands:
            raise _unknown(f"[{name}]", path, name, [f"[{each}]" for each in commands])
        everything = [*commands.values(), commands.get(own_path, ctx.command)]
        known = [commands[name]] if name else everything
        for key, value in table.items():
            if name or not absent:  # else it may be an option of what is not installed
                _require_known(key, path, name, known)
            if name in ("", own_path):
                values[key.replace("-", "_")] = value
    params = {option_name(param): param for param in _options_of(ctx.command)}
    del params[_CONFIG]
    return {
        param.name: _as_text(values[key], param, path)
        for key, param in params.items()
        if key in values
    }


def _absent(ctx: click.Context) -> Collection[str]:
    """Return the commands of a group that another distribution has, which is not installed."""
    return getattr(ctx.command, "absent", ())


def _tables(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of each table with its path, those at the top first."""
    yield prefix, {key: value for key, value in document.items() if not isinstance(value, dict)}
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _tables(value, f"{prefix}.{key}" if prefix else key)


def _as_text(value: object, param: click.Option, path: Path) -> object:
    """Return a value of the file as the text of a flag, so that one parser judges it."""
    if not param.multiple:
        return _scalar(value, param, path)
    values = split_list(value) if isinstance(value, str) else value
    return [
        _scalar(each, param, path) for each in (values if isinstance(values, list) else [values])
    ]


def _scalar(value: object, param: click.Option, path: Path) -> object:
    if isinstance(value, bool):
        return value if param.is_flag else "on" if value else "off"
    if isinstance(value, str | int | float):
        return str(value)
    raise click.UsageError(
        f"{option_name(param)} in {path} is a {type(value).__name__}: write a text, a number or,"
        " for an option that may be repeated, a list of them."
    )


def _require_known(key: str, path: Path, table: str, commands: list[click.Command]) -> None:
    options = [param for command in commands for param in _options_of(command)]
    names = {option_name(param) for param in options}
    names.discard(_CONFIG)
    flag = f"--{key.replace('_', '-')}"
    if key.replace("-", "_") not in names:
        for command in commands:
            if isinstance(command, LayeredCommand) and flag in command.removed:
                raise click.UsageError(command.replaced(flag, f"{key} in {path}"))
        place = f"{key} in [{table}]" if table else key
        hidden = {option_name(each) for each in options if each.hidden}
        raise _unknown(place, path, key, sorted(names - hidden))


def _unknown(place: str, path: Path, name: str, known: list[str]) -> click.UsageError:
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.0)
    meant = f": did you mean {near[0]}?" if near else "."
    return click.UsageError(f"{path} sets {place}, which is no option of storenode{meant}")


def _commands(ctx: click.Context, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the installed commands below a group with their paths, such as `db.prune`."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return
    absent = _absent(ctx)
    for name in (each for each in group.list_commands(ctx) if each not in absent):
        path, command = f"{prefix}{name}", group.get_command(ctx, name)
        assert command is not None, "it is listed"
        if isinstance(command, click.Group):
            child = click.Context(command, info_name=name, parent=ctx)
            yield from _commands(child, f"{path}.")
        yield path, command
