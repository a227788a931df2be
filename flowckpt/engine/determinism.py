"""Check whether a workflow is deterministic: run it once, drive it again from its record, and report differences.

    run it, in memory ──► drive a fresh generator with the recorded outputs ──► and another one, in another process

No step runs twice except `.ephemeral()` ones, which run at each replay anyway. The other process hashes text
differently (PYTHONHASHSEED), which reveals code that depends on the order of a set. In one more drive the body reads
changed environment variables, directories and times, which reveals code that depends on them.

A resume stops at the first difference. A second drive continues as long as it has recorded answers, so that one check
shows all differences.

A value that is the same in two replays within a minute may differ in a resume tomorrow. So the workflow is driven once
more in a changed environment, where the values that its body reads itself, not in a step, differ from the real ones.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.checkpoints import export_text, read_export
from flowckpt.core.dsl import NextGeneration, Step, Workflow
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData, Status, StepResult
from flowckpt.core.replay import Answer, Crash, Enter, Execute, Expansion, Finish, Replay, Restore, drive
from flowckpt.core.replay.replay import Nested, Own, all_of, is_another, split_record
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine.dry.recorded_drive import DryResponder
from flowckpt.engine.engine import WorkflowEngine, run_in_own_loop
from flowckpt.engine.rules.judge import identity_reasons
from flowckpt.engine.rules.paths import is_stopped
from flowckpt.engine.values.failures import read_answer, step_failure
from flowckpt.engine.values.inputs import bind_inputs, bind_next, decode_input
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.target import describe_target, load_target
from flowckpt.errors import FlowckptError, StepDefinitionError, WorkflowDefinitionError
from flowckpt.events import Event
from flowckpt.execution.claims import ClaimChecker
from flowckpt.execution.current_step import StepCall, StepServices
from flowckpt.execution.errors import record_error
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner, WorldSources
from flowckpt.stores.memory import MemoryCheckpointStore

_LATER_SECONDS = 100_000
_is_other: ContextVar[bool] = ContextVar("_is_other", default=False)
"""Whether the running code is the workflow's body, not an ephemeral step."""


_HELPERS = frozenset({__name__, "os", "_collections_abc", "collections.abc", "pathlib", "pathlib._local", "glob"})
"""Modules that read on behalf of their caller."""


def _is_read_by_body() -> bool:
    """Return whether the program itself reads; a library may read without depending on the value."""
    if not _is_other.get():
        return False
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in _HELPERS and frame.f_back is not None:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name not in sys.stdlib_module_names and "site-packages" not in frame.f_code.co_filename


class _OtherEnvironment(type(os.environ)):  # type: ignore[misc]  # a class that typeshed makes generic and Python does not
    def __getitem__(self, name: str) -> str:
        if not _is_read_by_body():
            value: str = super().__getitem__(name)
            return value
        try:
            value = super().__getitem__(name)
        except KeyError:
            value = ""
        return str(int(value) + 1) if value.isdigit() else f"{value}~"


def _drop_last(names: list[Any]) -> list[Any]:
    return names[:-1] if _is_read_by_body() else names


class _FewerEntries:
    """The entries of a directory, without one of them."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries
        self._found = iter(_drop_last([*entries]))

    def __iter__(self) -> Iterator[Any]:
        return self._found

    def __next__(self) -> Any:
        return next(self._found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def close(self) -> None:
        """Close the directory."""
        self._entries.close()


@contextmanager
def other_world() -> Iterator[None]:
    """Change the environment variables, directories and times that the workflow's body reads during the block."""
    clocks = {name: getattr(time, name) for name in ("time", "time_ns")}
    listdir, scandir, environment = os.listdir, os.scandir, type(os.environ)

    def shift(read: Callable[[], Any], by: int) -> Callable[[], Any]:
        return lambda: read() + by if _is_read_by_body() else read()

    try:
        os.environ.__class__ = _OtherEnvironment
        os.listdir = lambda *args: _drop_last(listdir(*args))
        os.scandir = lambda *args: _FewerEntries(scandir(*args))  # type: ignore[assignment]
        time.time = shift(clocks["time"], _LATER_SECONDS)
        time.time_ns = shift(clocks["time_ns"], _LATER_SECONDS * 10**9)
        with in_body(True):
            yield
    finally:
        os.environ.__class__ = environment
        os.listdir, os.scandir = listdir, scandir
        time.time, time.time_ns = clocks["time"], clocks["time_ns"]


@contextmanager
def in_body(is_body: bool) -> Iterator[None]:
    """Set whether the code in the block is the workflow's body, or an ephemeral step."""
    token = _is_other.set(is_body)
    try:
        yield
    finally:
        _is_other.reset(token)


RUN = "determinism-check"
_MODULE = "flowckpt.engine.determinism"


@attrs.frozen
class DeterminismReport:
    """The findings of `check_determinism`.

    Each difference has `kind`, `path`, `recorded`, `now`, `where` (`file:line`) and `place` (`this process`, `another
    process` or `another environment`).

    Attributes:
        workflow_name: the workflow.
        status: how the run ended.
        steps: the number of recorded steps compared.
        differences: what differed, in the order found.
        is_other_process_checked: whether a second process was compared, too.
        note: why not, or other remarks; may be empty.
    """

    workflow_name: str
    status: Status
    steps: int
    differences: tuple[Difference, ...]
    is_other_process_checked: bool = False
    note: str = ""

    @property
    def is_deterministic(self) -> bool:
        """Whether no difference was found."""
        return not self.differences


def check_determinism(workflow: Workflow[..., Any], /, **inputs: Any) -> DeterminismReport:
    """Run a workflow once in memory, drive it again from its record, and report what differs.

    The steps really run, so choose inputs that do no harm.

    Args:
        workflow: the workflow.
        **inputs: its inputs.

    Raises:
        InputError: an input is unknown or missing.
        EncodingError: an input cannot be recorded.
        RunInterrupted: a signal stopped the run.
    """
    return report_determinism(workflow, inputs)


def report_determinism(
    workflow: Workflow[..., Any],
    inputs: Mapping[str, Any],
    *,
    target: Mapping[str, str] | None = None,
    has_other_process: bool = True,
    on_event: Callable[[Event], None] | None = None,
) -> DeterminismReport:
    """Check a workflow; see `check_determinism`.

    Args:
        workflow: the workflow.
        inputs: its inputs by name.
        target: where another process finds the workflow; derived from its function by default.
        has_other_process: whether to drive it in another process, too.
        on_event: called with the events of the run.
    """
    store = MemoryCheckpointStore()
    options = RunOptions(target=target, rolls_back=False)
    session = WorkflowEngine(store).prepare(workflow, RUN, options, dict(inputs))
    session.ends_with_generation = True  # an endless run is checked for one generation
    result = WorkflowEngine.drive_sync(session, on_event=on_event)
    latest = run_in_own_loop(store.load_latest(RUN))
    assert latest is not None, "a run that has ended has a checkpoint"
    found, steps = drive_again(workflow, inputs, latest, place="this process")
    if not found:  # otherwise the same differences would be reported twice
        with other_world():
            found, _ = drive_again(workflow, inputs, latest, place="another environment")
    note, is_checked = "", False
    if result.status is Status.FAILED and result.error is not None:
        error = record_error(result.error)
        note = f"the run failed, so it is compared up to its failure: {error.type}: {error.message}"
    if has_other_process:
        others, reason = drive_in_other_process(target or describe_target(workflow), inputs, workflow, latest)
        is_checked = others is not None
        known = {(each.kind, each.path) for each in found}
        found += [each for each in others or () if (each.kind, each.path) not in known]
        note = "; ".join(each for each in (note, reason) if each)
    return DeterminismReport(workflow.name, result.status, steps, tuple(found), is_checked, note)


def drive_again(
    workflow: Workflow[Any, Any], inputs: Mapping[str, Any], latest: CheckpointData, *, place: str
) -> tuple[list[Difference], int]:
    """Drive a fresh generator from a record; return the differences, and how many steps were compared.

    Args:
        workflow: the workflow.
        inputs: its inputs by name.
        latest: the record.
        place: the name of this drive, for the differences.
    """

    async def drive() -> tuple[list[Difference], int]:
        bound = bind_inputs(workflow, inputs)
        second = SecondDrive(place, bound.known_secrets())
        end = await second.drive_workflow(workflow, bound.values(workflow), latest.step_results)
        if end is not None and latest.status in (Status.COMPLETED, Status.FAILED):
            second.compare_end("", _read_end(latest), end, workflow.where)
        return second.differences, second.compared

    return run_in_own_loop(drive())


def _read_end(recorded: CheckpointData | StepResult) -> End:
    if recorded.error is not None:
        return End(error=(recorded.error.type, recorded.error.message))
    return End(tree=plain_tree(recorded.held_output, "output"))


def drive_in_other_process(
    target: Mapping[str, str],
    inputs: Mapping[str, Any],
    workflow: Workflow[Any, Any],
    latest: CheckpointData,
    *,
    seed: str = "",
) -> tuple[list[Difference] | None, str]:
    """Drive a workflow from a record in another process; return the differences, or None and the reason.

    Args:
        target: where the other process finds the workflow.
        inputs: its inputs by name.
        workflow: the workflow.
        latest: the record.
        seed: the hash seed of the other process (PYTHONHASHSEED); by default different from this one's.
    """
    if not target.get("name") or not (target.get("file") or target.get("module")):
        return None, "it was not driven in another process: it is defined inside a function, so it cannot be imported"
    if workflow.secret_inputs:
        return None, "it was not driven in another process: its secret inputs are never written"
    encoded = bind_inputs(workflow, inputs).tree
    with tempfile.TemporaryDirectory(prefix="flowckpt-") as directory:
        question_file, answer_file = Path(directory, "asked.json"), Path(directory, "told.json")
        document = {"target": dict(target), "inputs": encoded, "checkpoint": json.loads(export_text(latest))}
        question_file.write_text(codec.dumps(document), encoding="utf-8")
        environ = {
            **os.environ,
            "PYTHONHASHSEED": seed or ("2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        }
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", _MODULE, str(question_file), str(answer_file)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            check=False,
        )
        if ended.returncode or not answer_file.exists():
            return None, f"it was not driven in another process: that process ended with code {ended.returncode}"
        answer = json.loads(answer_file.read_text(encoding="utf-8"))
    if "error" in answer:
        return None, f"it was not driven in another process: {answer['error']}"
    return [Difference(**each) for each in answer["differences"]], ""


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


# The other process: it drives a workflow from a record, and writes the differences.


def main(question_file: Path, answer_file: Path) -> None:
    """Compare one workflow with its record.

    Args:
        question_file: the file with the target, the inputs and the record.
        answer_file: the file to write the differences to.
    """
    question = json.loads(question_file.read_text(encoding="utf-8"))
    try:
        workflow = load_target(question["target"])
        inputs = {name: decode_input(workflow, name, tree) for name, tree in question["inputs"].items()}
        found, _ = drive_again(workflow, inputs, read_export(question["checkpoint"]), place="another process")
        answer: dict[str, Any] = {"differences": [attrs.asdict(each) for each in found]}
    except FlowckptError as error:
        answer = {"error": error.message}
    answer_file.write_text(json.dumps(answer), encoding="utf-8")


_SERVICES = StepServices("a workflow is only driven again, to compare what it does")


@attrs.frozen
class Difference:
    """A difference between the first run and a later drive.

    Attributes:
        kind: `path` (another step), `order`, `function`, `arguments`, `missing` (a recorded step was not yielded again),
            `output` or `error`.
        path: the step; empty for the workflow itself.
        recorded: what the first run did.
        now: what it did when it was driven again.
        where: `file:line` of the `yield`, or of the workflow.
        place: `this process`, `another process`, or `another environment`.
    """

    kind: str
    path: str
    recorded: str
    now: str
    where: str
    place: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} of {self.path or 'the workflow'}: first {self.recorded}, then {self.now}"


@attrs.frozen
class End:
    """How a generator ended.

    Attributes:
        tree: the encoded value that it returned.
        error: the type and the message of the exception that it raised, or None.
    """

    tree: Any = None
    error: tuple[str, str] | None = None


class SecondDrive:
    """Drives generators against a record.

    Args:
        place: the name of this drive, for the differences.
        secrets: the secrets of the run, which are never shown.

    Attributes:
        differences: the differences so far.
        compared: how many recorded steps were compared.
    """

    def __init__(self, place: str, secrets: KnownSecrets) -> None:
        self.differences: list[Difference] = []
        self.compared = 0
        self._place = place
        self._secrets = secrets
        world = WorldSources(SystemClock(), random.random, uuid4)
        self._runner = StepRunner(Interrupts(), ClaimChecker(), secrets, world)

    async def drive_workflow(
        self,
        workflow: Workflow[Any, Any],
        inputs: Mapping[str, Any],
        recorded: Iterable[StepResult],
        *,
        prefix: str = "",
    ) -> End | None:
        """Drive a workflow to its end and return the end; None if the record has no answer for a step.

        Args:
            workflow: the workflow.
            inputs: its inputs by name.
            recorded: the results of its steps, and of those nested in them.
            prefix: the prefix of the paths of its steps.
        """
        own, nested = split_record(recorded, prefix)
        compared = _Comparison(self, own, nested, [*own])
        spare = {each.path: each for each in all_of(own, nested)}
        # The record does not bind this drive: spare results are taken in any order.
        replay = Replay(
            workflow.make_generator(inputs),
            (),
            workflow.name,
            prefix=prefix,
            drops_what_changed=True,
            spare=spare,
            is_muted=True,
        )
        try:
            end = await drive(replay, compared)
        except (StepDefinitionError, WorkflowDefinitionError) as error:
            self.note("path", "", compared.expected, error.message[:200], error.where or workflow.where)
            return None
        finally:
            replay.close()
        if not isinstance(end, Finish | Crash):
            return None
        self.note_missing(compared.waiting, workflow.where)
        if isinstance(end, Finish):
            return _encode_end(end.output, workflow)
        if not isinstance(end.error, Exception):
            raise end.error
        failure = record_error(end.error)
        return End(error=(failure.type, failure.message))

    async def run(self, command: Execute) -> Answer:
        """Run an ephemeral step, as every replay does."""
        step, path = command.step, command.path
        with in_body(False):
            outcome = await self._runner.make_try(StepCall.first("", path, 1, step, CallIdentity(), _SERVICES))
        if outcome.error is None:
            return outcome.value, None
        return None, step_failure(path, record_error(outcome.error, path=path))

    def note_call(self, step: Step[Any], result: StepResult, where: str) -> None:
        """Note a step that calls another function than recorded, or passes other arguments."""
        self.compared += 1
        if is_another(step, result):
            call = f"{step.action.step_type} {step.action.function_name}".rstrip()
            self.note("function", result.path, f"{result.step_type} {result.function}".rstrip(), call, where)
        else:
            for reason in identity_reasons(step, result, self._secrets):
                self.note("arguments", result.path, "as recorded", reason.detail, where)

    def compare_end(self, path: str, recorded: End, now: End, where: str) -> None:
        """Compare two ends of a workflow.

        Args:
            path: its path; empty for the run's own.
            recorded: how it ended first.
            now: how it ended when it was driven again.
            where: the place of the workflow.
        """
        if recorded.error != now.error:
            was, is_now = (
                "no error" if each is None else ": ".join(each)[:200] for each in (recorded.error, now.error)
            )
            self.note("error", path, was, is_now, where)
        elif recorded.tree != now.tree:
            self.note("output", path, _shorten(recorded.tree), _shorten(now.tree), where)

    def note_missing(self, paths: list[str], where: str) -> None:
        """Note recorded steps that were not yielded again."""
        for path in paths:
            self.note("missing", path, f"the step {path!r}", "not yielded", where)

    def note(self, kind: str, path: str, recorded: str, now: str, where: str) -> None:
        """Note a difference, with secrets removed; see `Difference`."""
        text = self._secrets.redact
        self.differences.append(Difference(kind, path, text(recorded), text(now), where, self._place))


@attrs.define(eq=False)
class _Comparison(DryResponder):
    """Compares what one generator yields with its record, and answers from the record.

    Attributes:
        second: notes the differences.
        own: the results of its steps.
        nested: the results nested in them.
        waiting: the steps that it has not reached, in the order of the record.
    """

    second: SecondDrive
    own: Own
    nested: Nested
    waiting: list[str]

    @property
    def expected(self) -> str:
        """The next command according to the record."""
        return f"the step {self.waiting[0]!r}" if self.waiting else "its end"

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        return await self._compare(replay, command)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        if command.step.modifiers.is_ephemeral:
            return await self.second.run(command)
        return await self._compare(replay, command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        return await self._compare(replay, command)

    async def _compare(self, replay: Replay, command: Restore | Execute | Enter) -> Answer | None:
        path, where, note = command.path, replay.where(full=True), self.second.note
        if path not in self.own:
            note("path", path, self.expected, f"the step {path!r}", where)
            return None
        if path != self.waiting[0]:
            note("order", path, f"{self.expected} before it", f"the step {path!r}", where)
        self.waiting.remove(path)
        result = self.own[path]
        if result is None:
            return None  # the run ended inside it
        return await self.answer_member(replay, Enter(path, command.step, where, result, self.nested.get(path, ())))

    async def answer_member(self, replay: Replay, member: Enter) -> Answer | None:
        step, result = member.step, member.result
        assert result is not None
        if is_stopped(result):  # its record does not say how it was called
            return read_answer(step, result)
        self.second.note_call(step, result, member.location)
        if step.action.is_composite:
            return await self.answer_composite(replay, member)
        return read_answer(step, result)

    async def answer_child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        child, path, result, second = action.workflow, enter.path, enter.result, self.second
        assert result is not None
        end = await second.drive_workflow(child, action.inputs, enter.nested, prefix=f"{path}/")
        if end is not None:
            second.compare_end(path, _read_end(result), end, child.where)
        return read_answer(enter.step, result)

    async def answer_members(self, replay: Replay, expansion: Expansion) -> list[Answer]:
        answers: list[Answer] = []
        end, where = expansion.enter.result, expansion.enter.location
        for member in expansion:
            if member.result is not None:
                answer = await self.answer_member(replay, member)
                answers += [] if answer is None else [answer]
            elif not member.nested and end is not None and end.success:  # of one that failed, not all have run
                self.second.note("path", member.path, "no such member", f"the member {member.path!r}", where)
        self.second.note_missing([*expansion.own], where)
        return answers


def _encode_end(output: Any, workflow: Workflow[Any, Any]) -> End:
    try:
        if type(output) is NextGeneration:
            return End({"continue_as": bind_next(workflow, output).tree})
        return End(codec.encode(output, workflow.output_type, place="output"))
    except Exception as error:
        failure = record_error(error)
        return End(error=(failure.type, failure.message))


def _shorten(tree: Any) -> str:
    text = codec.dumps(tree)
    return text if len(text) <= 200 else f"{text[:200]}…"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
