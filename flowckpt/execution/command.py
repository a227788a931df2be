"""The `.command()` action: run a program, and decide whether it succeeded.

However the step ends (the program exits, a timeout, a cancel, a signal), it leaves no process running, except those
that the program detached on purpose, and no open file. A program that ended by itself counts as ended, even if a cancel
arrived a moment later.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from pathlib import Path

from flowckpt.core.dsl.command import CommandAction
from flowckpt.core.records.outputs import CommandOutput
from flowckpt.core.system.process import signal_name
from flowckpt.errors import CommandFailedError, StepTimeoutError
from flowckpt.evidence.claims import find_secrets, scrub
from flowckpt.execution.command_process import CommandProcess, OnLine, is_cut_below
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import await_interruptibly
from flowckpt.execution.thread import deliver_later

_TAIL = 2_000  # characters of an output that are added to an error
_MOST_SHOWN = 300  # characters of a command, or of a line, in a message
_PLAIN_WORD = re.compile(r"[\w@%+=:,./~-]+")
_NO_OUTPUT = CommandOutput(0)
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


async def run_command(
    action: CommandAction,
    *,
    path: str,
    timeout_seconds: float | None,
    interrupts: Interrupts,
    on_line: OnLine | None = None,
) -> CommandOutput:
    """Run a program and return how it ended, with any exit code.

    Args:
        action: the command.
        path: the step's path, for errors.
        timeout_seconds: the limit, or None.
        interrupts: delivers signals to the step.
        on_line: called in the running loop with the stream (`stdout` or `stderr`) and the text of each line while the
            program runs; None without a listener.

    Raises:
        CommandFailedError: the program cannot be started.
        StepTimeoutError: the program did not end in time, and was killed with all its child processes.
    """
    interrupts.raise_pending(asyncio.current_task())
    output: CommandOutput = await await_interruptibly(
        _run(action, path, timeout_seconds, interrupts, on_line), interrupts
    )
    return output


def check_exit(path: str, action: CommandAction, output: CommandOutput) -> None:
    """Check that a program returned 0.

    Raises:
        CommandFailedError: the program returned another exit code, or was killed.
    """
    if output.exit_code == 0:
        return
    code, line = output.exit_code, _find_last_line(output.stderr) or _find_last_line(output.stdout)
    how = f"returned {code}" if code > 0 else f"was killed by {signal_name(-code)}"
    remedy = "Fix it and resume; if this exit code is a success, claim it: .evidence(command_exit(…))."
    if code == -signal.SIGKILL:
        remedy = "A user killed it, or the system did because memory ran out; see the system's log."
    message = f"{_format_argv(action)} {how}{f': {line}' if line else ''}"
    raise _command_error(message, remedy, path, action, output, exit_code=code)


def is_cut_short(action: CommandAction, output: object) -> bool:
    """Return whether a recorded output of a command was cut, and has less than the command would keep now."""
    if not isinstance(output, CommandOutput):  # adopted, or replaced in a fork
        return False
    streams = (output.stdout, output.stdout_truncated), (output.stderr, output.stderr_truncated)
    return any(is_cut_below(action.max_output, text, left_out) for text, left_out in streams)


async def _run(
    action: CommandAction, path: str, timeout_seconds: float | None, interrupts: Interrupts, on_line: OnLine | None
) -> CommandOutput:
    process = CommandProcess(action, timeout_seconds=timeout_seconds, on_line=on_line)
    cancels: list[asyncio.CancelledError] = []
    process.start()
    try:
        while not process.ended.done():
            try:
                await asyncio.wait({process.ended})
            except asyncio.CancelledError as cancel:
                process.stop(at_once=bool(cancels))
                cancels.append(cancel)
    except BaseException:  # a second signal, or the loop is closed: awaiting is no longer possible
        process.close_feed()
        process.stop(at_once=True)
        process.join()
        raise
    finally:
        process.close_feed()
    if cancels and (process.end.is_ended_by_us or process.end.exit_code is None):
        raise cancels[0]
    if cancels:
        deliver_later(len(cancels), interrupts)
    return _read_outcome(process, action, path)


def _read_outcome(process: CommandProcess, action: CommandAction, path: str) -> CommandOutput:
    if isinstance(process.end.error, OSError):
        why, remedy = _explain_start_error(process.end.error, action)
        message = f"{_format_argv(action)} cannot be started: {why}"
        raise _command_error(message, remedy, path, action) from process.end.error
    for error in (process.end.error, process.feed.error if process.feed else None):
        if error is not None:
            raise error
    (stdout, stdout_left_out), (stderr, stderr_left_out) = process.read_outputs()
    output = CommandOutput(process.end.exit_code or 0, stdout, stderr, stdout_left_out, stderr_left_out)
    if process.end.is_timed_out:
        timeout = StepTimeoutError(path, timeout_seconds=process.timeout_seconds or 0.0)
        for name, text in (("output", stdout), ("error", stderr)):
            if text:
                timeout.add_note(f"The end of its standard {name}:\n{_tail(text, action)}")
        if process.end.is_left_behind:
            timeout.add_note("One of its processes could not be killed, and may still be running.")
        raise timeout
    if process.end.exit_code is None:
        remedy = "This process ignores SIGCHLD, or another part of it waits for all children: leave both to Python."
        message = f"{_format_argv(action)} ended, but its exit code is lost"
        raise _command_error(message, remedy, path, action, output)
    return output


# --- messages --------------------------------------------------------------------------------------------------------


def _command_error(
    message: str,
    remedy: str,
    path: str,
    action: CommandAction,
    output: CommandOutput = _NO_OUTPUT,
    *,
    exit_code: int | None = None,
) -> CommandFailedError:
    return CommandFailedError(
        scrub(message, _list_secrets(action)),
        path=path,
        argv=action.argv,
        exit_code=exit_code,
        stdout=_tail(output.stdout, action),
        stderr=_tail(output.stderr, action),
        remedy=remedy,
    )


def _explain_start_error(error: OSError, action: CommandAction) -> tuple[str, str]:  # noqa: PLR0911 - one return for each kind of error
    program, cwd = action.argv[0], Path(action.cwd or ".")
    if not cwd.is_dir():
        what = "is not a directory" if cwd.exists() else "does not exist"
        return (
            f"its directory {str(cwd)!r} {what}",
            f"Create it in an earlier step; cwd= is relative to {_format_directory(Path())!r}.",
        )
    if not os.access(cwd, os.X_OK):
        return f"its directory {str(cwd)!r} may not be entered", "Change its permissions."
    if error.errno == errno.ENOENT and "/" not in program:
        return f"there is no program {program!r} on the PATH", "Install it, or write its path."
    if error.errno == errno.ENOENT and (cwd / program).exists():
        return f"the interpreter that {program!r} names in its first line does not exist", "Correct its '#!' line."
    if error.errno == errno.ENOENT:
        return f"there is no file {program!r}", f"Its path is relative to {_format_directory(cwd)!r}."
    if error.errno == errno.EACCES:
        return (
            f"{program!r} may not be executed",
            f"Run 'chmod +x' on it, or name its interpreter: {['python', program]!r}.",
        )
    if error.errno == errno.ENOEXEC:
        return f"{program!r} is not a program", f"Give it a '#!' line, or name its interpreter: {['sh', program]!r}."
    if error.errno == errno.E2BIG:
        return "its arguments and environment are too long for the system", "Pass the data by stdin= or by a file."
    return error.strerror or str(error), "See the system's message."


def _format_directory(directory: Path) -> str:
    try:
        return str(directory.absolute())
    except OSError:  # the process's own directory was removed
        return str(directory)


def _list_secrets(action: CommandAction) -> frozenset[str]:
    return frozenset(find_secrets(action.env))


def _tail(text: str, action: CommandAction) -> str:
    return scrub(text, _list_secrets(action))[-_TAIL:]


def _find_last_line(text: str) -> str:
    for line in reversed(text[-_TAIL:].splitlines()):
        if shown := _escape(_COLOURS.sub("", line)).strip():
            return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return ""


def _format_argv(action: CommandAction) -> str:
    words = [word if _PLAIN_WORD.fullmatch(word) else repr(word) for word in action.argv]
    shown = " ".join(words)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[:_MOST_SHOWN]}…"
    return f"'{shown}'" if words == [*action.argv] else shown  # nested quotes are hard to read


def _escape(text: str) -> str:
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode() for each in text
    )
