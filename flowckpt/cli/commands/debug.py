"""`flowckpt debug`."""

from __future__ import annotations

import importlib
import pdb  # noqa: T100 - the command opens it
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.loaded_run import load_recorded_run
from flowckpt.cli.options import (
    Command,
    RunName,
    StepName,
    input_option,
    json_option,
    program_options,
    store_option,
)
from flowckpt.cli.render.terminal import escape, json_text, write
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.engine.dry.time_travel import Moment, Pause, RunHistory, open_history
from flowckpt.engine.values.placeholders import PlanStopped

_LONGEST = 2_000


@click.command("debug", cls=Command)
@click.argument("run", type=RunName())
@click.option("--at", "at", metavar="STEP", type=StepName(), help="The step to stop at: a path or a name.")
@click.option("--locals", "is_shown", is_flag=True, help="Print the local variables there and exit.")
@input_option
@program_options
@json_option
@store_option
def debug_command(
    run: str,
    at: str | None,
    is_shown: bool,
    inputs: dict[str, str],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
) -> int:
    """Open a debugger in a workflow, at a recorded step, with the workflow's real local variables.

    The recorded history is replayed into the workflow. No step runs, and nothing is saved. In the debugger, `p rows` prints
    a variable, `next` continues over restored steps, and `_step.call()` calls the step's function by hand.

    Without --at, a failed run stops where it failed, a completed run at its last step, and any other run at the first
    step without a result. IPython's debugger is used if it is installed.

    Examples:
      flowckpt debug nightly
      flowckpt debug nightly --at transform
      flowckpt debug nightly --at 'parse[24]' --locals --json
    """
    if as_json and not is_shown:
        raise click.UsageError("--json needs --locals")
    recorded = load_recorded_run(store, run, target=target, inputs=inputs, is_here=is_here)
    history = open_history(recorded.workflow_id, recorded.latest, recorded.workflow, recorded.inputs)
    if is_shown:
        moment = history.at(at or "")
        document = _make_document(history, moment)
        write(f"{json_text(document, indent=2)}\n" if as_json else _format_text(history, document))
    else:
        _Session(history).run(at or "")
    return ExitCode.DONE


def _make_document(history: RunHistory, moment: Moment) -> dict[str, Any]:
    secrets = history.secrets
    arguments = {str(number): value for number, value in enumerate(moment.args)} | dict(moment.kwargs)
    return {
        "workflow_id": history.workflow_id,
        "path": moment.path,
        "location": moment.location,
        "locals": _describe_values(moment.locals, secrets),
        "function": None
        if moment.function is None
        else getattr(moment.function, "__qualname__", repr(moment.function)),
        "arguments": _describe_values(arguments, secrets),
        "is_recorded": moment.is_recorded,
        "error": secrets.redact(moment.error) or None,
    }


def _describe_values(values: Mapping[str, Any], secrets: KnownSecrets) -> dict[str, str]:
    return {name: secrets.redact(_describe_value(value)) for name, value in values.items()}


def _describe_value(value: Any) -> str:
    try:
        text = repr(value)
    except PlanStopped as stop:
        return f"<the output of {stop.args[0]}, which is not recorded>"
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _format_text(history: RunHistory, document: Mapping[str, Any]) -> str:
    lines = [_format_headline(history, document["path"], document["location"])]
    lines += [f"  {escape(name)} = {escape(value)}" for name, value in document["locals"].items()]
    if document["function"] is not None:
        arguments = ", ".join(
            each if name.isdigit() else f"{name}={each}" for name, each in document["arguments"].items()
        )
        lines.append(f"the step calls {escape(document['function'])}({escape(arguments)})")
    if document["error"]:
        lines.append(f"it failed: {escape(document['error'])}")
    return "".join(f"{line}\n" for line in lines)


def _format_headline(history: RunHistory, path: str, location: str) -> str:
    where = f"at step {path!r}" if path else "where it raised an error"
    return escape(f"run {history.workflow_id}: the workflow {history.workflow.name} is stopped {where}, {location}")


class _Session:
    """One session of a debugger over a history."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self._debugger: Any = None

    def run(self, at: str) -> None:
        """Open the debugger at a step, and continue through the history on request."""
        self._debugger = _make_debugger_class()(skip=["flowckpt", "flowckpt.*"], nosigint=True)
        try:
            self._history.travel(at, self._stop)
        except Exception:
            if not self._debugger.quitting:  # otherwise this is how a debugger ends the program
                raise
        finally:
            sys.settrace(None)

    def _stop(self, pause: Pause) -> bool:
        sys.settrace(None)
        debugger, moment = self._debugger, pause.moment
        if debugger.quitting:
            return False
        write(f"{_format_headline(self._history, moment.path, moment.location)}\n")
        if moment.error:
            write(f"it failed: {escape(self._history.secrets.redact(moment.error))}\n")
        if moment.path and not moment.is_recorded:
            write("the step has no recorded result: the history ends here\n")
        if moment.function is not None:
            write("_step.call() calls its function by hand; _step.args and _step.kwargs are its arguments\n")
        debugger.stand_at(pause)
        if debugger.quitting or not moment.is_recorded:
            return False
        if debugger.is_followed:
            sys.settrace(debugger.trace_dispatch)
        return True


def _make_debugger_class() -> Any:
    """Return a debugger for generators suspended at a `yield`: IPython's at a terminal, if it is installed."""
    base: Any = pdb.Pdb
    if sys.stdin.isatty():
        with suppress(ImportError):
            base = importlib.import_module("IPython.core.debugger").Pdb

    class HistoryDebugger(base):  # type: ignore[misc]
        """Shows only the frames of the workflow."""

        frames: Sequence[FrameType] = ()
        moment: Moment | None = None
        is_followed = quitting = False

        def stand_at(self, pause: Pause) -> None:
            """Take commands in a generator suspended at a `yield`."""
            self.frames, self.moment = pause.frames, pause.moment
            self.reset()
            self.botframe = sys._getframe()
            for frame in pause.frames:
                frame.f_trace = self.trace_dispatch
            self.interaction(None if pause.traceback else pause.frames[-1], pause.traceback)

        def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
            """Return the frames of the program, without those of the driver."""
            stack, _ = super().get_stack(f, t)
            last = max((number for number, each in enumerate(stack) if _is_flowckpt(each[0])), default=-1)
            shown = stack[last + 1 :]
            first = shown[0][0] if shown else None
            frames: list[Any] = [*self.frames]
            outer = frames[: frames.index(first)] if first in frames and not t else []
            shown = [*((frame, frame.f_lineno) for frame in outer), *shown]
            return shown, len(shown) - 1

        def setup(self, f: FrameType | None, tb: TracebackType | None) -> Any:
            """Add the step to the locals."""
            result = super().setup(f, tb)
            if self.moment is not None and self.moment.path:
                self.curframe_locals["_step"] = self.moment
            return result

        def set_next(self, frame: FrameType) -> None:
            self.is_followed = True
            super().set_next(frame)

        def set_step(self) -> None:
            self.is_followed = True
            super().set_step()

        def set_continue(self) -> None:
            self.is_followed = bool(self.breaks)
            super().set_continue()

    return HistoryDebugger


def _is_flowckpt(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "flowckpt"
