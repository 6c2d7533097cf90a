"""The `tailkeeper` command. A subcommand's module is imported only when it is called, so that `--help` is instant.

One line in `COMMANDS` adds a subcommand: its name, where its function (or a `typer.Typer` of several) is, a short help.
"""

import importlib
import sys
from importlib import metadata
from typing import Annotated, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tailkeeper.cli.errors import EXIT_USAGE, UserError


class _Entry(NamedTuple):
    where: str
    """`module:attribute`."""
    help: str


COMMANDS: Final[dict[str, _Entry]] = {
    "bench": _Entry("tailkeeper.cli.bench:bench", "Send an open-loop load to a URL and measure the tail."),
    "lint": _Entry("tailkeeper.cli.lint:lint", "Check policy files as the API server would, and give advice."),
    "run": _Entry("tailkeeper.cli.run:run", "Serve a policy's models without a cluster."),
    "pause": _Entry("tailkeeper.cli.pause:pause", "Keep the tuner's hands off a policy or an instance."),
    "plan": _Entry("tailkeeper.cli.plan:plan", "Choose replicas and window for a forecast load, simulated."),
    "resume": _Entry("tailkeeper.cli.pause:resume", "Let the tuner move again."),
    "set": _Entry("tailkeeper.cli.move:set_levers", "Move levers of a running instance by hand."),
    "simulate": _Entry("tailkeeper.cli.simulate:simulate", "Run a load through a policy on a virtual clock."),
    "status": _Entry("tailkeeper.cli.status:status", "Show instances against their SLA, and the last move."),
}

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


class _LazyGroup(TyperGroup):
    """Knows every subcommand by its short help; imports the one that is called."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else command, rest


def _load(name: str):  # type: ignore[no-untyped-def]
    module, _, attribute = COMMANDS[name].where.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tailkeeper":
            raise
        raise UserError(f"`tailkeeper {name}` needs {error.name}, which is not installed") from None
    if not isinstance(found, typer.Typer):
        function, found = found, _typer()
        found.command(name, context_settings=dict(CONTEXT))(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


def _typer() -> typer.Typer:
    # rich's help would take longer to import than the commands take to run.
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailkeeper {metadata.version('tailkeeper')}")
        raise typer.Exit


app = typer.Typer(
    name="tailkeeper",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=dict(CONTEXT),
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the tail latency of batched inference inside its SLA."""


def main() -> None:
    """Run the command line; a `UserError` becomes one line and its exit code, never a traceback."""
    group = typer.main.get_command(app)
    assert isinstance(group, _LazyGroup)
    for name, entry in COMMANDS.items():
        group.commands[name] = TyperCommand(name, help=entry.help, rich_markup_mode=None)
    try:
        group(prog_name="tailkeeper")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has left (`| head`): not a failure of ours.
        sys.stderr.close()
        sys.exit(EXIT_USAGE)
