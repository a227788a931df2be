"""The door of the command: it turns whatever ends a command into a message and an exit code."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from flowckpt._version import __version__
from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.render.errors import show_error
from flowckpt.cli.render.terminal import (
    OutputClosedError,
    OutputFailedError,
    abandon,
    escaped,
    escaped_lines,
    open_missing_descriptors,
    say,
)
from flowckpt.cli.store_hints import with_store
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import FlowckptError

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


# The group of commands. A command's module is loaded when the command is invoked, or asked for its help.


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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    Args:
        arguments: the command line behind the program's name; that of the process where not given.
    """
    open_missing_descriptors()
    code = _run(arguments)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # prints of the user's, most likely: the run itself is not worse for it
        abandon()
    except (OSError, ValueError) as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        abandon()
        code = code or ExitCode.OUTPUT_FAILED
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        returned = group.main(arguments, prog_name="flowckpt", standalone_mode=False)
    except click.UsageError as error:
        _show_usage_error(error)
        return ExitCode.USAGE
    except click.ClickException as error:
        say(f"flowckpt: {escaped(error.format_message())}")
        return ExitCode.USAGE
    except click.Abort:
        say("flowckpt: stopped")
        return ExitCode.SIGINT
    except OutputClosedError:
        return ExitCode.OUTPUT_CLOSED
    except OutputFailedError as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        return ExitCode.OUTPUT_FAILED
    except FlowckptError as error:
        show_error(error)
        return code_of_error(error)
    except OSError as error:  # no store's, which are its own errors: the help on a full disk, a directory that is gone
        say(f"flowckpt: {escaped(str(error))}")
        return ExitCode.OUTPUT_FAILED
    except Exception as error:
        say(f"flowckpt: this is an error of flowckpt itself: {escaped(f'{type(error).__name__}: {error}')}")
        say(escaped_lines("".join(traceback.format_exception(error))))
        say("Please report it with the lines above.")
        return ExitCode.INTERNAL
    return returned if isinstance(returned, int) else ExitCode.DONE


def _show_usage_error(error: click.UsageError) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # `flowckpt` alone; from click 8.2 on
        error.show()
        return
    if error.ctx is not None:
        say(error.ctx.get_usage())
        say(f"Try '{error.ctx.command_path} --help'.")
    say(f"flowckpt: {with_store(escaped(error.format_message()), error.ctx)}")
