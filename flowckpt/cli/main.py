"""The command: turns every outcome into a message and an exit code."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from flowckpt._version import __version__
from flowckpt.cli import notices
from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.groups import CHOSEN_RUN, OPENED_STORE, CommandGroup, add_store_option, find_near_words
from flowckpt.cli.notices import show_error
from flowckpt.cli.render.terminal import (
    OutputClosedError,
    OutputFailedError,
    abandon_stdout,
    escape,
    escape_lines,
    has_written,
    json_text,
    open_missing_descriptors,
    reset_written,
    say,
    write_if_read,
)
from flowckpt.errors import FlowckptError

_LEAST_FILES = 16
"""An event loop needs four descriptors; a store and its locks need some more."""

_EXAMPLE = """\b
Examples:
  flowckpt run pipeline.py:etl -i source=orders.csv
  flowckpt resume --last
  flowckpt list --status crashed"""


class Program(CommandGroup):
    """The top-level group: also turns a closed output and errors of flowckpt into exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the group's own arguments; its help may go to a closed output."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # click would exit with 1, which is the code of a failed workflow
            abandon_stdout()
            raise OutputClosedError from None

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a command; its output may be closed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            abandon_stdout()
            raise OutputClosedError from None
        except FlowckptError as error:  # here, the store of the command is still known
            show_error(error)
            return code_of_error(error)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except Exception:
            if OPENED_STORE not in ctx.meta:
                raise
            from flowckpt.cli.stored_run import find_damage  # noqa: PLC0415 - rare: a record that another program wrote

            damage = find_damage(ctx.meta[OPENED_STORE], ctx.meta.get(CHOSEN_RUN, ""))
            if damage is None:
                raise
            show_error(damage)
            return code_of_error(damage)


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
        arguments: the command line after the program's name; by default, that of the process.
    """
    open_missing_descriptors()
    if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _LEAST_FILES:
        say(
            f"flowckpt: the limit of open files is {limit}, and flowckpt needs {_LEAST_FILES}: raise it with 'ulimit -n'"
        )
        sys.exit(ExitCode.USAGE)
    reset_written()
    notices.shown.clear()
    arguments = sys.argv[1:] if arguments is None else [*arguments]
    code = _run(arguments)
    try:
        if code and not has_written() and "--json" in arguments:
            error = notices.shown[-1] if notices.shown else None
            write_if_read(f"{json_text({'error': error, 'exit_code': int(code)}, indent=2)}\n")
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # most likely a print of the user's code: the run itself is unaffected
        abandon_stdout()
    except (OSError, ValueError, OutputFailedError) as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        abandon_stdout()
        code = code or ExitCode.OUTPUT_FAILED
    _wait_for_hooks(code)
    sys.exit(code)


def _wait_for_hooks(code: int) -> None:
    """Wait for the hooks of an ended run; Ctrl-C stops waiting."""
    if (hooks := sys.modules.get("flowckpt.cli.hooks")) is None:
        return
    try:
        hooks.wait_for_hooks()
    except KeyboardInterrupt:
        say("flowckpt: stopped waiting; a hook is still running")
        os._exit(code)


_NO_THREAD = "can't start new thread"
"""The text of Python's `RuntimeError`."""


def _run(arguments: Sequence[str] | None) -> int:  # noqa: PLR0911 - one return for each way to end
    try:
        returned = group.main(arguments, prog_name="flowckpt", standalone_mode=False)
    except click.UsageError as error:
        _show_usage_error(error)
        return ExitCode.USAGE
    except click.ClickException as error:
        say(f"flowckpt: {escape(error.format_message())}")
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
    except OSError as error:  # stores raise their own errors, so this is help on a full disk, or a removed directory
        is_gone = (
            isinstance(error, FileNotFoundError) and error.errno is not None and error.filename is None
        )  # `os.getcwd`
        say(f"flowckpt: {'the current directory no longer exists' if is_gone else escape(str(error))}")
        if is_gone:
            say("Change to a directory that exists: cd DIRECTORY")
        return ExitCode.OUTPUT_FAILED
    except MemoryError:
        say("flowckpt: out of memory; saved checkpoints are intact")
        return ExitCode.OUT_OF_MEMORY
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
            say("flowckpt: no more threads can be started; saved checkpoints are intact")
            say("Raise the limit (ulimit -u, or that of the container), or end other programs.")
            return ExitCode.OUT_OF_MEMORY
        say(f"flowckpt: internal error: {escape(f'{type(error).__name__}: {error}')}")
        say(escape_lines("".join(traceback.format_exception(error))))
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
    message = _unknown_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
    message = add_store_option(message, error.ctx)
    notices.shown.append({"type": "UsageError", "message": message, "remedy": ""})
    say(f"flowckpt: {escape(message)}")


def _unknown_option(error: click.NoSuchOption) -> str:
    names = {each.strip("-"): each for each in error.possibilities or ()}
    # Without the dashes, which would make '--yes' similar to '--max-bytes'.
    near = find_near_words(error.option_name.strip("-"), names)
    advice = "".join(f"; did you mean {names[each]}?" for each in near)
    takes_inputs = error.ctx is not None and any("-i" in each.opts for each in error.ctx.command.params)
    if not advice and takes_inputs and error.option_name.startswith("--"):
        advice = f"; an input is given as -i {error.option_name.strip('-').replace('-', '_')}=VALUE"
    return f"unknown option {error.option_name!r}{advice}"
