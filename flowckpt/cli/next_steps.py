"""The commands that continue after a resume stopped to ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from flowckpt.cli.config.settings import SETTINGS
from flowckpt.cli.notices import show_error
from flowckpt.cli.render.terminal import escape, say
from flowckpt.cli.settings import StoreChoice, is_set_already
from flowckpt.core.records.wait import Wait, WaitKind, due_at, format_moment
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.declared import shell_word
from flowckpt.engine.rules.paths import HandledFailure
from flowckpt.engine.values.waits import approval_digests
from flowckpt.errors import (
    CrashLoopError,
    FlowckptError,
    InputMismatchError,
    NotUndoableError,
    StaleStepError,
    StepInDoubtError,
)
from flowckpt.stores.open import hide_passwords

if TYPE_CHECKING:
    from flowckpt.engine import RunOptions


CODE = "code"
NEEDS_A_DECISION = (StaleStepError, StepInDoubtError, CrashLoopError, NotUndoableError)
"""The errors at which a resume stops until a person decides."""


@attrs.frozen(eq=False, repr=False)
class ResumeLine(FieldEquality):
    """A resume as typed, from which the next command line is built.

    Attributes:
        workflow_id: the run.
        choice: the store of the run.
        options: the options of the resume.
        target: where the workflow is, as typed, or None.
        on_save_error: what to do when a checkpoint cannot be saved, or None.
        inputs: the typed inputs, as text, without secret ones.
    """

    workflow_id: str
    choice: StoreChoice
    options: RunOptions
    target: str | None = None
    on_save_error: str | None = None
    inputs: Mapping[str, str] = attrs.field(factory=dict)

    def command(self, *added: str, name: str = "resume") -> str:
        """Return the command, quoted for a shell and safe to show.

        Args:
            *added: a further option; it replaces a typed one of the same name, or a decision on the same step.
            name: the command.
        """
        words = [*self.place_words(), *["--no-cache"] * self.options.no_cache]
        decided = added[1] if added[:1] in (("--done",), ("--not-done",)) else None
        for option, value in (
            *self._typed_options(),
            *self._typed_decisions(decided),
            *(self._typed_saving_options() if name == "resume" else ()),
        ):
            if decided is not None or option not in added:
                words += [option, value]
        return command_line(name, self.choice, self.workflow_id, options=[*words, *added])

    def leave_out(self, ended: Collection[str]) -> ResumeLine:
        """Return the resume without the decisions on steps that have ended since: they are in doubt no longer."""
        options = self.options
        done = {path: output for path, output in options.done.items() if path not in ended}
        not_done = [path for path in options.not_done if path not in ended]
        return attrs.evolve(self, options=attrs.evolve(options, done=done, not_done=not_done))

    def place_words(self) -> list[str]:
        """Return the options that name the program and its directory, if they were typed."""
        target = [] if self.target is None else ["--target", self.target]
        return target if self.options.base_path is None else [*target, "--here"]

    def _typed_options(self) -> Iterable[tuple[str, str]]:
        options = self.options
        for name in ("on_stale", "on_code_change", "on_package_change", "reuse", "verify"):
            if (value := getattr(options, name)) is not None and not is_set_already(name, value):
                yield SETTINGS[name].option, str(value)
        for name in ("retry_budget", "max_crashes"):
            if (number := getattr(options, name)) is not None:
                yield f"--{name.replace('_', '-')}", str(number)
        if not is_set_already("allow_network", tuple(options.allow_network)):
            for host in options.allow_network:
                yield SETTINGS["allow_network"].option, host
        executors = [each if name == "default" else f"{name}={each}" for name, each in options.executors.items()]
        if not is_set_already("executors", tuple(executors)):
            for each in executors:
                yield SETTINGS["executors"].option, each
        if options.from_step is not None:
            yield "--from", options.from_step

    def _typed_decisions(self, decided: str | None) -> Iterable[tuple[str, str]]:
        """Yield the decisions on steps in doubt, except on one that is decided now."""
        for path, output in self.options.done.items():
            if path != decided:
                yield "--done", path if output is ... else f"{path}={output.text}"
        for path in self.options.not_done:
            if path != decided:
                yield "--not-done", path

    def _typed_saving_options(self) -> Iterable[tuple[str, str]]:
        if self.on_save_error is not None and not is_set_already("on_save_error", self.on_save_error):
            yield SETTINGS["on_save_error"].option, self.on_save_error


def stale_ways(line: ResumeLine, kinds: Collection[str], path: str = "") -> list[str]:
    """Return the options after a stale result: one sentence with a command for each.

    Args:
        line: the resume.
        kinds: what moved.
        path: the step, if a rerun repeats an effect that happened once.
    """
    options = ["--on-code-change"] if CODE in kinds else []
    if any(kind != CODE for kind in kinds):
        options.append("--on-stale")
    rerun, reuse = ([word for option in options for word in (option, answer)] for answer in ("rerun", "reuse"))
    # The same call: its evidence is checked before its effect is repeated.
    is_asked = bool(path) and set(kinds) == {CODE}
    unless = ", unless its evidence shows that it was done" if is_asked else ""
    ways = [
        f"Run it and what follows again{unless}: {line.command(*rerun)}",
        f"Reuse its recorded result anyway: {line.command(*reuse)}",
    ]
    if path:
        ways.append(f"Repeat its effect unconditionally: {line.command('--from', path)}")
        ways.append(f"No default repeats it, nor does 'flowckpt recover' without {' and '.join(options)}.")
    return ways


def in_doubt_ways(line: ResumeLine, path: str, *, was_done: bool = False) -> list[str]:
    """Return the options for a step in doubt, or for a finished step that would run again."""
    if was_done:
        return [
            f"Keep its recorded result (with =JSON: another output): {line.command('--done', path)}",
            f"If its effect is gone, or may happen twice, run it again: {line.command('--not-done', path)}",
        ]
    return [
        "Find out whether its effect happened.",
        f"If it was done (with =JSON: its output): {line.command('--done', path)}",
        f"If it was not done, run it: {line.command('--not-done', path)}",
    ]


def crash_loop_ways(line: ResumeLine) -> list[str]:
    """Return the options after a crash loop."""
    return [
        "Find out why its process crashes: memory, native code, a limit of the machine.",
        f"Resume it, and reset the crash count: {line.command('--force')}",
    ]


def final_ways(line: ResumeLine) -> list[str]:
    """Return the options after a final failure."""
    return ["Start a new run.", f"Run everything again, starting at a step: {line.command('--from', 'STEP')}"]


def changed_ways(line: ResumeLine) -> list[str]:
    """Return the options if the workflow yields other steps than recorded."""
    return [
        "Restore the code that wrote the record, and resume.",
        f"Run everything again from where they differ: {line.command('--force')}",
        f"Run everything again, starting at a step: {line.command('--from', 'STEP')}",
    ]


def not_undoable_ways(line: ResumeLine) -> list[str]:
    """Return the options if the code no longer says how to undo some steps."""
    leave = command_line("cancel", line.choice, line.workflow_id, options=["--no-rollback"])
    return [
        "Restore the code that ran them, and resume.",
        f"Undo the others, and report these as failures: {line.command('--force')}",
        f"End the run without undoing its steps: {leave}",
    ]


def secret_ways(line: ResumeLine, names: Iterable[str]) -> list[str]:
    """Return the options for a resume that lacks secret inputs."""
    words = [word for name in names for word in ("-i", f"{name}=@env:{name.upper()}")]
    return [
        f"Set it in the environment, then run: {line.command(*words)}",
        "@file:PATH reads it from a file, and - asks for it.",
    ]


def mismatch_ways(line: ResumeLine, error: InputMismatchError) -> list[str]:
    """Return the options for inputs that differ from the recorded ones."""
    if not error.names or not line.inputs.keys() >= {*error.names}:
        return [error.remedy]
    words = [word for name, text in line.inputs.items() for word in ("-i", f"{name}={text}")]
    fork = command_line("fork", line.choice, line.workflow_id, options=[*line.place_words(), *words])
    return [
        f"Resume with the recorded inputs: {line.command()}",
        f"Create a new run with these inputs, which reuses results that are still valid: {fork}",
    ]


def show_stop(error: FlowckptError, line: ResumeLine) -> None:
    """Show on standard error why a resume stopped, and the commands that continue.

    Args:
        error: one of `NEEDS_A_DECISION`.
        line: the resume.
    """
    if isinstance(error, StaleStepError):
        ways = stale_ways(line, change_kinds(error), error.path if error.repeats_effect else "")
    elif isinstance(error, NotUndoableError):
        ways = not_undoable_ways(line)
    elif isinstance(error, StepInDoubtError):
        ways = in_doubt_ways(line, error.path, was_done=error.was_done)
    else:
        ways = crash_loop_ways(line)
    show_error(error, [*ways, f"See it step by step: {line.command(name='plan')}"])


def change_kinds(error: StaleStepError) -> frozenset[str]:
    """Return the kinds of change that made a result stale.

    Args:
        error: the error of a resume that stopped.
    """
    return frozenset(reason.partition(":")[0] for reason in error.reasons)


# The command that resumes a run that stopped early.


def show_resume_hint(
    workflow_id: str, store: StoreChoice, *, more: str = "", handled: HandledFailure | None = None
) -> None:
    """Show the command that resumes the run, or the options after a handled failure."""
    if store.spec.startswith("memory:"):
        say("It cannot be resumed: its store was the memory of this process.")
    elif handled is None:
        say(f"Resume with: {command_line('resume', store, workflow_id)}{f' {more}' if more else ''}")
    else:
        line = command_line("resume", store, workflow_id, options=("--from", handled.path))
        say("\n".join(handled_ways(line, handled)))


def handled_ways(line: str, handled: HandledFailure) -> list[str]:
    """Return why a resume runs nothing after a handled failure, and the two options.

    Args:
        line: the command that runs everything again, starting at the failed step.
        handled: the failure.
    """
    path, (first, *more) = escape(handled.path), map(escape, handled.followed_by)
    others = f" and {len(more)} more" if more else ""
    return [
        f"The workflow handled the failure of {path}: it ran {first}{others} after it. A resume keeps that and runs nothing.",
        f"Run it again, starting at {path}: {line}",
        f"  That does not undo {first}{others}.",
        "Or start a new run.",
    ]


def command_line(name: str, store: StoreChoice, *words: str, options: Sequence[str] = ()) -> str:
    """Return a command on the same store, quoted for a shell.

    Args:
        name: the command, such as `store trust`.
        store: the store.
        *words: its arguments.
        options: its options.
    """
    line = ["flowckpt", *name.split()]
    if store.given:
        line += ["--store", hide_passwords(store.given)]
    if name == "resume":
        line += store.mirror_words
    line += options
    if any(word.startswith("-") for word in words):
        line.append("--")
    return escape(" ".join(map(shell_word, [*line, *words])))


# The waits of a suspended run, for people, with the commands that continue it.


_MOST = 8


def wait_lines(waits: Sequence[Wait]) -> list[str]:
    """Return lines that describe the waits of a run."""
    lines = []
    for wait in waits[:_MOST]:
        lines.append(f"waiting: {escape(str(wait))}")
        lines += [f"  {escape(text)}" for text in wait.question]
        lines += [f"  to approve: {escape(text)}: {digest}" for text, digest in approval_digests(wait).items()]
        if wait.voided:
            lines.append(f"  asked again: {escape(wait.voided)}")
    if len(waits) > _MOST:
        lines.append(f"waiting: {len(waits) - _MOST} more")
    return lines


def show_ways_on(workflow_id: str, waits: Sequence[Wait], store: StoreChoice) -> None:
    """Show on standard error the commands that continue a suspended run."""
    if store.spec.startswith("memory:"):
        show_resume_hint(workflow_id, store)
        return
    for line in _answer_lines(workflow_id, waits, store):
        say(line)
    first = due_at(waits)
    when = "" if first is None else f", from {format_moment(first)} on"
    if any(not wait.is_timed for wait in waits):
        when = ", once that is done" + (f"; or from {format_moment(first)} on" if first is not None else "")
    say(f"Resume with: {command_line('resume', store, workflow_id)}{when}")


def _answer_lines(workflow_id: str, waits: Iterable[Wait], store: StoreChoice) -> list[str]:
    answerable = [wait for wait in waits if not wait.is_timed]
    names = Counter(wait.name for wait in answerable if wait.kind is WaitKind.APPROVAL)
    lines: dict[str, None] = {}
    for wait in answerable:
        if wait.kind is WaitKind.SIGNAL:
            lines[f"Send it with: {command_line('signal', store, workflow_id, wait.name)}"] = None
        else:
            name = wait.name if names[wait.name] == 1 else wait.path
            lines[f"Approve with: {command_line('approve', store, workflow_id, name)}"] = None
    commands = list(lines)
    return [*commands[:_MOST], *([f"… and {len(commands) - _MOST} more"] if len(commands) > _MOST else [])]
