"""The group of commands. A command's module is loaded when the command is invoked, or asked for its help."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from flowckpt._version import __version__
from flowckpt.cli.exit_codes import code_of_error
from flowckpt.cli.failures import show_error
from flowckpt.cli.output import OutputClosedError, abandon
from flowckpt.errors import FlowckptError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import difflib
else:  # only a command that does not exist needs it
    difflib = LazyModule("difflib")

COMMANDS = {
    "run": "Start a run of a workflow.",
    "resume": "Carry a run on from its last checkpoint.",
    "determinism": "Run a workflow once, drive it again, and report what differs.",
    "plan": "Show what a resume would do, step by step; runs nothing.",
    "why": "Show why one step would run again or be reused.",
    "list": "List the runs of the store, newest first.",
    "show": "Show one run: its status, steps and checkpoints.",
    "stats": "Show figures of the store: sizes, evidence, failures, slowest steps.",
    "verify": "Check the evidence of a run against the world now; changes nothing.",
    "diff": "Show what differs between two runs or checkpoints.",
    "rollback": "Make an earlier checkpoint the one to resume from.",
    "fork": "Make a new run that starts from another's history.",
    "signal": "Send a signal to a run that waits for it, or will.",
    "approve": "Approve what a run asks for.",
    "reject": "Say no to what a run asks for.",
    "export": "Write a whole run to one file, or a checkpoint as one JSON document.",
    "import": "Take in a run from a file that export wrote.",
    "copy": "Copy runs to another store.",
    "cancel": "Stop a run for good; what its steps did is undone.",
    "recover": "Resume every run whose process is gone, or whose time has come.",
    "clear": "Remove a run with all its checkpoints.",
    "prune": "Remove old runs, or old checkpoints of one run, and free space.",
    "pin": "Keep a checkpoint, and its run, whatever is pruned.",
    "check": "Check the integrity of the store; changes nothing.",
    "key": "Make a key file, put a new key in it, or show its keys.",
    "trust": "Take a run for true that does not prove it with the key.",
    "config": "Show each setting, its value and where it comes from.",
    "completion": "Print the completion script of a shell.",
}

_EXAMPLE = """\b
Examples:
  flowckpt run pipeline.py:etl -i source=orders.csv
  flowckpt resume --last
  flowckpt list --status crashed"""


class CommandGroup(click.Group):
    """A group that knows its commands by name and loads each when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they are explained."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command's module and return the command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"flowckpt.cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, say which there are."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0].lower(), COMMANDS, n=3, cutoff=0.6)
            said = f"did you mean {' or '.join(near)}?" if near else f"the commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {args[0]!r}; {said}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without loading any."""
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the group's own arguments; its help may go to a reader that has gone."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # click would exit with 1, which is the code of a failed workflow
            abandon()
            raise OutputClosedError from None

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a command; what it prints may go to a reader that has gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            abandon()
            raise OutputClosedError from None
        except FlowckptError as error:  # here, where it is still known which store the command works on
            show_error(error)
            return code_of_error(error)


@click.group(
    cls=CommandGroup,
    name="flowckpt",
    help="Run pipelines that carry on where they stopped.",
    epilog=_EXAMPLE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="flowckpt", message="%(prog)s %(version)s")
def group() -> None:
    """Hold the commands."""
