"""Verbs of the command line that are imported when they are first run.

A service that starts needs its own modules only, and the overview of all verbs needs none of them. Importing all verbs
took every start half a second longer, and `relibra --help` a second.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer.core
import typer.main


class LazyVerbs(MutableMapping[str, Any]):
    """Click commands by name. Reading a verb that is not loaded yet imports `relibra.cli.<verb>`.

    The module of a verb defines a function of the same name, or `app`, a `typer.Typer` with commands of its own.
    """

    def __init__(self, verbs: tuple[str, ...], commands: MutableMapping[str, Any]) -> None:
        self._commands: dict[str, Any] = dict.fromkeys(verbs) | dict(commands)

    def __getitem__(self, name: str) -> Any:
        if self._commands[name] is None:
            self._commands[name] = _load(name)
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def group_of(overview: Mapping[str, Mapping[str, str]]) -> type[typer.core.TyperGroup]:
    """Return the class of a group that holds the verbs of an overview, in this order, besides its own commands.

    Args:
        overview: heading -> verb -> the line about it, which `--help` and completion show without loading the verb.
    """
    lines = {
        name: typer.core.TyperCommand(name, help=line, rich_help_panel=heading)
        for heading, verbs in overview.items()
        for name, line in verbs.items()
    }

    class Group(typer.core.TyperGroup):
        def __init__(self, *, commands: MutableMapping[str, Any], **attributes: Any) -> None:
            super().__init__(commands=LazyVerbs(tuple(lines), commands), **attributes)  # type: ignore[arg-type]

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)  # reading the items, as the parent does, would load every verb

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return what the overview says of a verb; `resolve_command` returns the verb."""
            return lines.get(cmd_name) or super().get_command(ctx, cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return name, command if name is None else self.commands[name], rest

    return Group


def _load(name: str) -> Any:
    module = import_module(f"relibra.cli.{name}")
    parent = typer.Typer()
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        parent.command(name)(getattr(module, name))
    return typer.main.get_group(parent).commands[name]
