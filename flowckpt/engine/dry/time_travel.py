"""Time travel: replay the recorded history into the real generator, up to a step, and show its local variables.

No step runs. The responder answers from the record until the generator yields the wanted step, then passes the frames
of the suspended generator on: to a mapping of locals, or to a debugger.
"""

from __future__ import annotations

import asyncio
import importlib
import traceback
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

import attrs

from flowckpt.core.codec.results import as_view
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.dsl.checks import encode_name
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData, Status, StepResult
from flowckpt.core.records.listing import IMPORTED, refuse_task
from flowckpt.core.replay import Answer, Command, Crash, Enter, Execute, Replay, Restore
from flowckpt.core.system.attrs_base import NOTEBOOK_PAGES
from flowckpt.core.system.blocking import hidden_loop, run_alone
from flowckpt.engine.dry.recorded_drive import DryResponder, drive_recorded
from flowckpt.engine.rules.paths import ROLLBACK
from flowckpt.engine.values.failures import read_answer
from flowckpt.engine.values.inputs import BoundInputs, check_workflow, rebind_recorded
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, use_missing_secret
from flowckpt.engine.values.target import load_target
from flowckpt.errors import FlowckptError, StepNotFoundError, TargetError
from flowckpt.stores.base import StoreBase


@attrs.frozen(eq=False)
class Moment:
    """A workflow that is suspended at the `yield` of a step.

    Attributes:
        path: the step; empty if the workflow itself raised.
        location: `file:line` of the `yield`.
        locals: the local variables of the workflow there.
        function: the function of the step; None for a step without one.
        args: its positional arguments.
        kwargs: its keyword arguments.
        is_recorded: whether the step has a recorded result.
        error: how it failed according to the record, or empty.
    """

    path: str
    location: str
    locals: Mapping[str, Any]
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    is_recorded: bool = True
    error: str = ""

    def call(self) -> Any:
        """Call the step's function by hand, with its arguments. Nothing is recorded."""
        if self.function is None:
            raise FlowckptError(f"step {self.path!r} has no function to call")
        return self.function(*self.args, **self.kwargs)


@attrs.frozen(eq=False)
class Pause:
    """A moment with the frames of the suspended generators, outermost first, and the traceback of an error."""

    moment: Moment
    frames: list[FrameType]
    traceback: TracebackType | None = None


Visit = Callable[[Pause], bool]
"""Called when the wanted step is yielded; returns whether to follow the history further."""


@attrs.define(eq=False)
class _Travel(DryResponder):
    """Answers from the record, and stops at the wanted step."""

    wanted: frozenset[str]
    visit: Visit
    is_over: bool = False
    last: Execute | Enter | None = None
    _replays: dict[str, Replay] = attrs.field(factory=dict)

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        if not self._visit_if_wanted(replay, command.path, command.step, command.result):
            return None
        return read_answer(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        if not self._visit_if_wanted(replay, command.path, command.step, None):
            return None
        return self._end_history(replay, command, await super().execute(replay, command))

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        if not self._visit_if_wanted(replay, command.path, command.step, command.result):
            return None
        return self._end_history(replay, command, await self.answer_composite(replay, command))

    def _end_history(self, replay: Replay, command: Execute | Enter, answer: Answer | None) -> Answer | None:
        """Return an answer; without one the history ends here, so stop if no step is wanted."""
        if answer is None and not self.is_over:
            self.last = command
            if not self.wanted:
                self.visit(self.make_pause(replay, command.path, command.step, None))
                self.is_over = True
        return answer

    async def answer_member(self, replay: Replay, member: Enter) -> Answer | None:
        if not self._visit_if_wanted(replay, member.path, member.step, member.result):
            return None
        return await super().answer_member(replay, member)

    def _visit_if_wanted(self, replay: Replay, path: str, step: Step[Any], result: StepResult | None) -> bool:
        """Call the visitor if the step is the wanted one; return False once the visits are over."""
        self._replays[replay.prefix] = replay
        if path in self.wanted and not self.is_over:
            self.wanted = frozenset()
            self.is_over = not self.visit(self.make_pause(replay, path, step, result))
        return not self.is_over

    def make_pause(self, replay: Replay, path: str, step: Step[Any], result: StepResult | None) -> Pause:
        outer = [each for prefix, each in self._replays.items() if replay.prefix.startswith(prefix)]
        frames = [frame for each in sorted(outer, key=lambda one: len(one.prefix)) for frame in each.frames()]
        action = step.action
        called: dict[str, Any] = {}
        if isinstance(action, PythonAction):
            called = {"function": action.function, "args": tuple(action.args), "kwargs": dict(action.kwargs)}
        error = "" if result is None or result.error is None else f"{result.error.type}: {result.error.message}"
        moment = Moment(
            path,
            replay.where(full=True),
            MappingProxyType({**frames[-1].f_locals}),
            **called,
            is_recorded=result is not None,
            error=error,
        )
        return Pause(moment, frames)


@attrs.frozen(eq=False)
class RunHistory:
    """The recorded history of a run, and its workflow.

    Attributes:
        workflow_id: the run.
        workflow: its workflow.
        latest: its newest checkpoint.
        bound: its inputs.
        store: where it is stored.
    """

    workflow_id: str
    workflow: Workflow[..., Any]
    latest: CheckpointData
    bound: BoundInputs
    store: StoreBase | None = None

    def _repr_html_(self) -> str | None:
        """Return the run with its waterfall, for the cell of a notebook."""
        if self.store is None:
            return None
        pages: Any = importlib.import_module(NOTEBOOK_PAGES)
        reading = pages.read_report(self.store, self.workflow_id)
        with hidden_loop(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            html: str = pages.html_fragment(run_alone(runner, reading))
        return html

    def __repr__(self) -> str:
        return f"<history of run {self.workflow_id}: {len(self.steps)} steps>"

    @property
    def results(self) -> list[StepResult]:
        """The recorded results, in the order in which they were recorded."""
        return [each for each in as_view(self.latest.step_results) if each.step_type != ROLLBACK]

    @property
    def steps(self) -> tuple[str, ...]:
        """The paths of the recorded steps."""
        return tuple(each.path for each in self.results)

    @property
    def secrets(self) -> KnownSecrets:
        """The secret inputs that have a value."""
        return self.bound.known_secrets()

    def at(self, step: str = "") -> Moment:
        """Return the state of the workflow at a step, before the step's result came back.

        Args:
            step: a path, or a name for its first use. By default the step that failed; of a completed run the last step,
                and of any other run the first step without a result.

        Raises:
            StepNotFoundError: the history has no such step.
            WorkflowChangedError: the workflow no longer follows the record; the error says where.
            FlowckptError: the workflow needs a value that no record has.
        """
        pauses: list[Pause] = []

        def keep(pause: Pause) -> bool:
            pauses.append(pause)
            return False

        self.travel(step, keep)
        return pauses[0].moment

    def travel(self, step: str, visit: Visit) -> None:
        """Replay the history up to a step, and call a function there; see `at`.

        Args:
            step: as for `at`.
            visit: called while the generator is suspended at the step. If it returns True, the history is followed
                further, and the function is called once more at the end of the record.
        """
        wanted = frozenset({step, encode_name(step)}) if step else self._choose_steps()
        responder = _Travel(wanted, visit)
        values = self.bound.values(self.workflow, use_missing=use_missing_secret)
        generator = self.workflow.make_generator(values)
        replay = Replay(generator, self.results, self.workflow.name, is_muted=True)
        try:
            self._finish(responder, drive_recorded(replay, responder), step, visit)
        except PlanStopped as stop:
            raise _explain_stop(stop) from None
        finally:
            replay.close()

    def _choose_steps(self) -> frozenset[str]:
        error, status = self.latest.error, self.latest.status
        if status is Status.FAILED and error is not None:
            return frozenset({error.path} if error.path in self.steps else ())
        outer = [path for path in self.steps if "/" not in path]
        return frozenset(outer[-1:] if status is Status.COMPLETED else ())

    def _finish(self, responder: _Travel, end: Command, step: str, visit: Visit) -> None:
        if responder.is_over:
            return
        if isinstance(end, Crash):
            if isinstance(end.error, PlanStopped):
                raise end.error
            if not step or not responder.wanted:
                visit(_pause_at_error(end.error))
                return
        if responder.wanted:
            if not step:
                raise FlowckptError(
                    f"the history of run {self.workflow_id!r} has no step to stop at", remedy="Name one: --at STEP."
                )
            raise StepNotFoundError(self.workflow_id, step, known=self.steps)
        if not step and responder.last is None:
            raise FlowckptError(f"run {self.workflow_id!r} has no recorded step")


def _pause_at_error(error: BaseException) -> Pause:
    """Return the place in the workflow where it raised its own error."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith("flowckpt.")
    ]
    if not frames:
        raise error
    frame, line = frames[0]
    location = f"{frame.f_code.co_filename}:{line}"
    text = f"{type(error).__name__}: {error}"
    moment = Moment("", location, MappingProxyType({**frame.f_locals}), error=text, is_recorded=False)
    return Pause(moment, [each for each, _ in frames], error.__traceback__)


def _explain_stop(stop: PlanStopped) -> FlowckptError:
    name = stop.args[0]
    if isinstance(stop, SecretNeeded):
        return FlowckptError(
            f"the workflow itself uses the secret input {name!r}, which is not recorded",
            remedy=f"Add -i {name}=…",
        )
    return FlowckptError(
        f"the workflow itself uses the output of {name!r}, which runs at each resume and is not recorded",
        remedy="Choose an earlier step: no step runs here.",
    )


def open_history(
    workflow_id: str,
    latest: CheckpointData,
    workflow: Workflow[..., Any] | None,
    inputs: Mapping[str, Any],
    store: StoreBase | None = None,
) -> RunHistory:
    """Return the history of a run; its workflow is loaded if it is not given.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.
        workflow: its workflow.
        inputs: secret inputs, by name.
        store: the store of the run.
    """
    refuse_task(workflow_id, latest)
    if workflow is None:
        described = latest.metadata.get("target", {})
        if IMPORTED in latest.metadata or not described.get("name"):
            why = "was imported" if IMPORTED in latest.metadata else "was started from inside a function"
            raise TargetError(
                f"run {workflow_id!r} {why}, so its record does not name a program to load",
                target="",
                remedy="Give its workflow: engine.open(run, workflow=…), or --target.",
            )
        workflow = load_target(described)
    check_workflow(workflow)
    bound = rebind_recorded(workflow, latest, inputs)
    return RunHistory(workflow_id, workflow, latest, bound, store)
