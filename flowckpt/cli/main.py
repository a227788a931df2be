"""The command: whatever ends it becomes a message and an exit code."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from flowckpt._version import __version__
from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.groups import CommandGroup, with_store
from flowckpt.cli.render import errors
from flowckpt.cli.render.errors import show_error
from flowckpt.cli.render.terminal import (
    OutputClosedError,
    OutputFailedError,
    abandon,
    escaped,
    escaped_lines,
    forget_written,
    has_written,
    json_text,
    open_missing_descriptors,
    say,
    write_if_read,
)
from flowckpt.core.system.lazy import age_objects
from flowckpt.errors import FlowckptError

_LEAST_FILES = 16
"""A loop takes four descriptors, and a store and its locks some more."""

_EXAMPLE = """\b
Examples:
  flowckpt run pipeline.py:etl -i source=orders.csv
  flowckpt resume --last
  flowckpt list --status crashed"""


class Program(CommandGroup):
    """The whole command: it also turns a reader that has gone, and errors of flowckpt, into exit codes."""

    owns_process = False
    """Whether this is the process of a command, and not one that called `main`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; its modules stay, so the garbage collector need not look through them."""
        command = super().get_command(ctx, cmd_name)
        if self.owns_process:
            age_objects()
        return command

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


group = Program(
    "flowckpt",
    "Run pipelines that resume where they stopped.",
    epilog=_EXAMPLE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, prog_name="flowckpt", message="%(prog)s %(version)s")(group)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    Args:
        arguments: the command line behind the program's name; that of the process where not given.
    """
    open_missing_descriptors()
    if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _LEAST_FILES:
        say(
            f"flowckpt: the limit of open files is {limit}, and flowckpt needs {_LEAST_FILES}: raise it with 'ulimit -n'"
        )
        sys.exit(ExitCode.USAGE)
    forget_written()
    errors.shown.clear()
    group.owns_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else [*arguments]
    code = _run(arguments)
    try:
        if code and not has_written() and "--json" in arguments:
            error = errors.shown[-1] if errors.shown else None
            write_if_read(f"{json_text({'error': error, 'exit_code': int(code)}, indent=2)}\n")
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # prints of the user's, most likely: the run itself is not worse for it
        abandon()
    except (OSError, ValueError, OutputFailedError) as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        abandon()
        code = code or ExitCode.OUTPUT_FAILED
    _wait_for_hooks(code)
    sys.exit(code)


def _wait_for_hooks(code: int) -> None:
    """Wait for the hooks of a run that has ended; Ctrl-C leaves them."""
    if (hooks := sys.modules.get("flowckpt.cli.hooks")) is None:
        return
    try:
        hooks.wait_for_hooks()
    except KeyboardInterrupt:
        say("flowckpt: stopped waiting; a hook is still running")
        os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:  # noqa: PLR0911 - one return for each way to end
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
    except MemoryError:
        say("flowckpt: out of memory; saved checkpoints are intact")
        return ExitCode.OUT_OF_MEMORY
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
    message = with_store(error.format_message(), error.ctx)
    errors.shown.append({"type": "UsageError", "message": message, "remedy": ""})
    say(f"flowckpt: {escaped(message)}")
