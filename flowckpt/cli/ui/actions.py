"""The actions of the page. Each shows its effect first, then runs a command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from flowckpt.cli.stored_run import StoredRun
from flowckpt.core.system.numbers import join_names, pluralize
from flowckpt.engine.history.checkpoints import count_resumable, count_standing, find_undone
from flowckpt.engine.rules.paths import (
    ROLLBACK,
    UNDOABLE,
    find_left_to_undo,
    find_path,
    merge_set_aside,
    select_for_fork,
)
from flowckpt.engine.values.superseded import Superseded
from flowckpt.errors import SettingError, StepNotFoundError

SHORT_SECONDS = 2.0
"""How long a response waits for the command of an action; a longer command continues, and its page shows its output."""
_PREVIEW_SECONDS = 60.0
_MOST_OUTPUT = 100_000
_MOST_JOBS = 200
_MOST_SHOWN = 20
_MOST_ARGUMENT = 131_000
"""The bytes of one argument: Linux allows 131,071."""


@attrs.frozen
class Field:
    """An input of an action's form.

    Attributes:
        name: its name in the form.
        label: the label shown to the user.
        kind: `text`, `number`, `json`, `lines`, `choice`, `checkbox`, `checkpoint`, `step` or `hidden`.
        is_required: whether it must be given.
        hint: the expected input; for a choice, the options.
    """

    name: str
    label: str
    kind: str = "text"
    is_required: bool = False
    hint: str = ""

    def text_of(self, value: Any) -> str:
        """Return a JSON value as the text of the form.

        Raises:
            SettingError: the value has the wrong type.
        """
        if self.kind == "json":
            return json.dumps(value)
        if value is None:
            return ""
        if self.kind == "checkbox" and isinstance(value, bool):
            return "yes" if value else ""
        if self.kind == "lines" and isinstance(value, list) and all(isinstance(each, str) for each in value):
            return "\n".join(value)
        if self.kind in ("number", "checkpoint") and type(value) is int:
            return str(value)
        if self.kind not in ("checkbox", "lines") and isinstance(value, str):
            return value
        json_type = _SCHEMAS.get(self.kind, {"type": "string"})["type"]
        raise SettingError(
            f"{self.name} is not of type {json_type}: {value!r:.100}", remedy=f"Send a JSON {json_type}."
        )


@attrs.frozen
class Action:
    """Something that a person can do with a run or with the store.

    Attributes:
        name: its name in the URL.
        title: the title shown to the user.
        effect: its effect, in one or two sentences.
        fields: the inputs of its form.
        arguments: returns the arguments of the command for a run and the values of the form.
        preview: returns the arguments of a command that shows the effect without having it, if there is one.
        describe: returns the effect on a run, in lines, if `effect` is not enough.
        is_danger: whether the action is irreversible.
    """

    name: str
    title: str
    effect: str
    arguments: Callable[[str, Mapping[str, str]], list[str]]
    fields: tuple[Field, ...] = ()
    preview: Callable[[str, Mapping[str, str]], list[str]] | None = None
    is_danger: bool = False
    describe: Callable[[StoredRun, Mapping[str, str]], list[str]] | None = None

    def values_of(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Return the values of a JSON object as those of the form.

        Raises:
            SettingError: a field is unknown, missing or has the wrong type.
        """
        fields = {field.name: field for field in self.fields}
        for name in document:
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise SettingError(f"{self.name} has no field {name[:100]!r}", remedy=f"Its fields are: {known}.")
        values = {name: fields[name].text_of(value) for name, value in document.items()}
        for field in self.fields:
            if field.is_required and not values.get(field.name):
                raise SettingError(f"{self.name} needs the field {field.name!r}", remedy="Add it to the JSON object.")
        return values

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its fields."""
        properties = {
            field.name: {**_SCHEMAS.get(field.kind, {"type": "string"}), "description": field.hint or field.label}
            for field in self.fields
        }
        required = [field.name for field in self.fields if field.is_required]
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }


_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "checkbox": {"type": "boolean"},
    "number": {"type": "integer"},
    "json": {},
    "lines": {"type": "array", "items": {"type": "string"}},
}


def _fill_options(values: Mapping[str, str], **options: str) -> list[str]:
    """Return the options whose fields were filled in; a value after `=` cannot be parsed as an option."""
    filled = {option: values[name] for name, option in options.items() if values.get(name)}
    return [option + value if option.endswith("=") else option for option, value in filled.items()]


def _argument_builder(
    *words: str, after: Sequence[str] = (), **options: str
) -> Callable[[str, Mapping[str, str]], list[str]]:
    """Return a function that builds the command line of an action on a run.

    Args:
        *words: the command.
        after: the fields whose values follow the run.
        **options: the options of the other fields; see `_fill_options`.
    """
    return lambda run, values: [
        *words,
        *_fill_options(values, **options),
        "--",
        run,
        *(values[name] for name in after if values.get(name)),
    ]


_POLICY = {"on_stale": "--on-stale=", "on_code_change": "--on-code-change=", "from_step": "--from="}
_ANSWER = {"by": "--by=", "comment": "--comment=", "request": "--request=", "resume": "--resume"}


def _fork_arguments(run: str, values: Mapping[str, str]) -> list[str]:
    edits = [f"--set={line.strip()}" for line in values.get("edits", "").splitlines() if line.strip()]
    return ["fork", *_fill_options(values, from_step="--from=", new_id="--id="), *edits, "--", run]


def _prune_arguments(run: str, values: Mapping[str, str]) -> list[str]:
    limits = {"keep": "--keep=", "older_than": "--older-than=", "workflow": "--workflow="}
    return ["store", "prune", *_fill_options(values, **limits, dry_run="--dry-run"), *(["--", run] if run else [])]


def _describe_cancel(stored: StoredRun, values: Mapping[str, str]) -> list[str]:
    lines = [f"{stored.owner} stops first."] if stored.owner is not None else []
    if values.get("no_rollback"):
        return [*lines, "No step is undone."]
    results = merge_set_aside(stored.latest.step_results, Superseded(stored.latest.metadata).list_undoable())
    undoable = {result.path for result in results if UNDOABLE in result.marks}
    paths = [result.path for result in find_left_to_undo(results, undoable)]
    return [
        *lines,
        f"Undone, in this order: {join_names(paths, _MOST_SHOWN)}."
        if paths
        else "No finished step has a compensation.",
    ]


def _describe_rollback(stored: StoredRun, values: Mapping[str, str]) -> list[str]:
    chosen = [each for each in stored.checkpoints if str(each.sequence) == values.get("checkpoint")]
    if not chosen:
        return []
    paths = [result.path for result in stored.latest.step_results[chosen[0].steps :]]
    counting = f"{pluralize(chosen[0].steps, 'result')} of checkpoint {chosen[0].checkpoint_id} still count."
    return [counting, f"No longer counted: {join_names(paths, _MOST_SHOWN)}." if paths else "No result is lost."]


def _describe_fork(stored: StoredRun, values: Mapping[str, str]) -> list[str]:
    results, path = stored.latest.step_results, values.get("from_step", "")
    if path and path not in stored.latest.in_flight:
        try:
            path = find_path("", results, path)
        except StepNotFoundError:
            return [f"The run has no step {path!r}."]
    length = count_standing(results[: count_resumable(stored.latest)], find_undone(results))
    copied = select_for_fork(results, length, path, ())
    lines = [f"The new run takes over {pluralize(len(copied), 'result')}."]
    taken = {each.path for each in copied}
    left_out = [each.path for each in results if each.path not in taken and each.step_type != ROLLBACK]
    return [*lines, f"Its resume executes again: {join_names(left_out, _MOST_SHOWN)}."] if left_out else lines


_WHO = (Field("by", "Who", hint="your name; the user of this machine by default"), Field("comment", "Comment"))
_REQUEST = Field("request", "", "hidden", hint="answer only this question, by its id in the waits of the run")
_RESUME_NOW = Field("resume", "Resume the run at once", "checkbox")
_STEP = Field("from_step", "From step", "step", hint="run again from this step")

RUN_ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "resume",
            "Resume",
            "The run resumes from its last checkpoint in a process of its own. It executes all steps below that are not "
            "reused.",
            _argument_builder("resume", **_POLICY, force="--force"),
            (
                Field("on_stale", "Stale results", "choice", hint="rerun reuse fail"),
                Field("on_code_change", "Changed code", "choice", hint="rerun reuse fail"),
                _STEP,
                Field("force", "Run every step again that would stop the resume", "checkbox"),
            ),
            _argument_builder("plan", **_POLICY),
        ),
        Action(
            "approve",
            "Approve",
            "The approval is recorded with your name. Its claims are checked first; if one no longer holds, nothing is "
            "recorded.",
            _argument_builder("approve", after=("name",), **_ANSWER),
            (Field("name", "Approval", is_required=True), *_WHO, _REQUEST, _RESUME_NOW),
        ),
        Action(
            "reject",
            "Reject",
            "The rejection is recorded with your name. The step fails, unless the workflow handles it.",
            _argument_builder("reject", after=("name",), **_ANSWER),
            (Field("name", "Approval", is_required=True), *_WHO, _REQUEST, _RESUME_NOW),
        ),
        Action(
            "signal",
            "Send a signal",
            "The signal is saved durably and taken once, by the next wait of this name.",
            _argument_builder("signal", after=("name",), data="--data=", by="--by=", id="--id=", resume="--resume"),
            (
                Field("name", "Signal", is_required=True),
                Field("data", "Data", "json", hint="JSON; empty for none"),
                Field("by", "Who"),
                Field("id", "", "hidden"),
                _RESUME_NOW,
            ),
        ),
        Action(
            "cancel",
            "Cancel",
            "The run stops for good. Its steps with a compensation are undone, newest first.",
            _argument_builder("cancel", no_rollback="--no-rollback"),
            (Field("no_rollback", "Keep the effects of the steps", "checkbox"),),
            is_danger=True,
            describe=_describe_cancel,
        ),
        Action(
            "fork",
            "Fork",
            "A new run starts from the history of this one. This run is only read, and no step is executed.",
            _fork_arguments,
            (
                _STEP,
                Field("edits", "Outputs to replace", "lines", hint="one STEP=JSON on each line"),
                Field("new_id", "Id of the new run", hint="a new one by default"),
            ),
            describe=_describe_fork,
        ),
        Action(
            "rollback",
            "Roll back",
            "The run returns to an earlier checkpoint, and the next resume continues from there. Later results stay in the "
            "store and no longer count. No step is executed or undone.",
            _argument_builder("rollback", after=("checkpoint",)),
            (Field("checkpoint", "Checkpoint", "checkpoint", is_required=True),),
            is_danger=True,
            describe=_describe_rollback,
        ),
        Action(
            "pin",
            "Pin",
            "The checkpoint and its run are never pruned.",
            _argument_builder("store", "pin", after=("checkpoint",), unpin="--unpin"),
            (Field("checkpoint", "Checkpoint", "checkpoint"), Field("unpin", "Remove the pin", "checkbox")),
        ),
    )
}

STORE_ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "prune",
            "Prune",
            "Completed runs that meet every condition are removed.",
            _prune_arguments,
            (
                Field("keep", "Keep the newest of each workflow", "number"),
                Field("older_than", "Older than", hint="30d, 12h, 45m"),
                Field("workflow", "Workflow"),
                Field("dry_run", "Only show what would be removed", "checkbox"),
            ),
            lambda run, values: _prune_arguments(run, {**values, "dry_run": "yes"}),
            is_danger=True,
        ),
        Action(
            "check", "Check", "The whole store is read and verified. Nothing is changed.", lambda *_: ["store", "check"]
        ),
    )
}


@attrs.define
class Job:
    """A command that was started.

    Attributes:
        number: its number in the URL.
        arguments: its arguments.
        started_at: when it was started, aware and in UTC.
        process: the process.
        output: the file with its output.
    """

    number: int
    arguments: Sequence[str]
    started_at: datetime
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def text(self) -> str:
        """Return the end of its output."""
        data = self.output.read_bytes()
        return data[-_MOST_OUTPUT:].decode("utf-8", "replace")


@attrs.define
class Commands:
    """Starts commands on one store and keeps the newest of them.

    Attributes:
        store: the store, for `--store`.
    """

    store: str
    _jobs: dict[int, Job] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _directory: tempfile.TemporaryDirectory[str] = attrs.field(
        factory=lambda: tempfile.TemporaryDirectory(prefix="flowckpt-ui-")
    )
    _number: int = 0

    def start(self, arguments: Sequence[str]) -> Job:
        """Start a command. It outlives the page: a resumed run continues when the page is closed.

        Args:
            arguments: its arguments, without `--store`.
        """
        line = self._line(arguments)
        with self._lock:
            self._number += 1
            number = self._number
        output = Path(self._directory.name) / f"{number}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                line,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "NO_COLOR": "1"},
            )
        job = Job(number, arguments, datetime.now(UTC), process, output)
        with self._lock:
            self._jobs[number] = job
            for old in [each for each, other in self._jobs.items() if other.exit_code is not None][:-_MOST_JOBS]:
                self._jobs.pop(old).output.unlink(missing_ok=True)
        return job

    def run(self, arguments: Sequence[str], *, patience: float = _PREVIEW_SECONDS) -> Job:
        """Start a command and wait for its end, at most `patience` seconds."""
        job = self.start(arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):  # its page shows its progress
            job.process.wait(patience)
        return job

    def document(self, arguments: Sequence[str]) -> tuple[int, Any]:
        """Run a command that prints JSON, and return its exit code and its document.

        Args:
            arguments: its arguments, with `--json`.
        """
        ran = subprocess.run(  # noqa: S603 - our own command, no shell
            self._line(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            start_new_session=True,  # Ctrl-C stops the page, but not a run
            env={**os.environ, "NO_COLOR": "1"},
        )
        try:
            return ran.returncode, json.loads(ran.stdout)
        except ValueError:
            message = ran.stderr.decode("utf-8", "replace").strip()
            return ran.returncode, {"error": {"message": message}, "exit_code": ran.returncode}

    def job(self, number: int) -> Job | None:
        """Return a command that was started, if it is still known."""
        with self._lock:
            return self._jobs.get(number)

    def close(self) -> None:
        """Remove the output of the commands; running commands continue."""
        self._directory.cleanup()

    def _line(self, arguments: Sequence[str]) -> list[str]:
        for each in arguments:
            if "\0" in each or any("\ud800" <= character <= "\udfff" for character in each):
                raise SettingError(
                    f"{each[:100]!r} contains a character that a command cannot take", remedy="Remove it."
                )
            if len(each.encode()) > _MOST_ARGUMENT:
                size = f"{len(each.encode()):,} bytes"
                raise SettingError(f"a value of {size} is too large for a command", remedy="Send it from Python.")
        return [sys.executable, "-m", "flowckpt", "--store", self.store, *arguments]
