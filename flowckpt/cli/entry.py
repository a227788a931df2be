"""The door of the command: it turns whatever ends a command into a message and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.failures import show_error
from flowckpt.cli.group import group
from flowckpt.cli.output import OutputClosedError, OutputFailedError, abandon, open_missing_descriptors, say
from flowckpt.cli.store_hints import with_store
from flowckpt.cli.terminal_text import escaped, escaped_lines
from flowckpt.errors import FlowckptError


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
