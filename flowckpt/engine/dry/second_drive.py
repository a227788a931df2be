"""A generator driven again from its record, step by step: what it does otherwise is noted, and it is driven on.

A resume stops at the first difference. This continues as long as it knows what to answer, so that one look shows them all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.results import plain_tree
from flowckpt.core.dsl import NextGeneration, Step, Workflow
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import StepResult
from flowckpt.core.replay import Answer, Crash, Enter, Execute, Expansion, Finish, Replay, Restore, drive
from flowckpt.core.replay.replay import Nested, Own, all_of, is_another, split_record
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine.dry.other_world import in_body
from flowckpt.engine.dry.recorded_drive import DryResponder
from flowckpt.engine.rules.identity import identity_reasons
from flowckpt.engine.values.failures import recorded_answer, recorded_error, step_failure
from flowckpt.engine.values.inputs import bind_inputs
from flowckpt.errors import StepDefinitionError, WorkflowDefinitionError
from flowckpt.execution.claims import ClaimChecker
from flowckpt.execution.current_step import NullStepServices, StepCall
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner
from flowckpt.execution.world import Nondeterminism

_SERVICES = NullStepServices("a workflow is only driven again, to compare what it does")


@attrs.frozen
class Difference:
    """Something that was not the same again.

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
        tree: what it returned, as it is recorded.
        error: the type and the message of what it raised, or None.
    """

    tree: Any = None
    error: tuple[str, str] | None = None


class SecondDrive:
    """Drives generators against a record.

    Args:
        place: which process this is.
        secrets: the secrets of the run, which are never shown.

    Attributes:
        differences: what was not the same again.
        compared: how many recorded steps were come to.
    """

    def __init__(self, place: str, secrets: KnownSecrets) -> None:
        self.differences: list[Difference] = []
        self.compared = 0
        self._place = place
        self._secrets = secrets
        world = Nondeterminism(SystemClock(), random.random, uuid4)
        self._runner = StepRunner(Interrupts(), ClaimChecker(), secrets, world)

    async def driven(
        self,
        workflow: Workflow[Any, Any],
        inputs: Mapping[str, Any],
        recorded: Iterable[StepResult],
        *,
        prefix: str = "",
    ) -> End | None:
        """Drive a workflow to its end; return it, or None where the record does not say how to continue.

        Args:
            workflow: the workflow.
            inputs: its inputs by name.
            recorded: the results of its steps, and of those nested in them.
            prefix: what the paths of its steps begin with.
        """
        own, nested = split_record(recorded, prefix)
        compared = _Compared(self, own, nested, [*own])
        spare = {each.path: each for each in all_of(own, nested)}
        # The record binds nothing here: what is spare is taken in any order.
        replay = Replay(
            workflow(**inputs), (), workflow.name, prefix=prefix, drops_what_changed=True, spare=spare, is_muted=True
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
            return _returned(end.output, workflow)
        if not isinstance(end.error, Exception):
            raise end.error
        said = recorded_error(end.error)
        return End(error=(said.type, said.message))

    async def run(self, command: Execute) -> Answer:
        """Run an ephemeral step, as every replay does."""
        step, path = command.step, command.path
        with in_body(False):
            outcome = await self._runner.attempt(StepCall("", path, 1, 1, step, CallIdentity(), _SERVICES))
        if outcome.error is None:
            return outcome.value, None
        return None, step_failure(path, recorded_error(outcome.error, path=path))

    def note_call(self, step: Step[Any], result: StepResult, where: str) -> None:
        """Note where a step calls something else than its record says, or with other arguments."""
        self.compared += 1
        if is_another(step, result):
            now = f"{step.action.step_type} {step.action.function_name}".rstrip()
            self.note("function", result.path, f"{result.step_type} {result.function}".rstrip(), now, where)
        else:
            for reason in identity_reasons(step, result, self._secrets):
                self.note("arguments", result.path, "as recorded", reason.detail, where)

    def compare_end(self, path: str, recorded: End, now: End, where: str) -> None:
        """Compare two ends of a workflow.

        Args:
            path: its path; empty for the run's own.
            recorded: how it ended first.
            now: how it ended when it was driven again.
            where: where it stands.
        """
        if recorded.error != now.error:
            was, is_now = (
                "no error" if each is None else ": ".join(each)[:200] for each in (recorded.error, now.error)
            )
            self.note("error", path, was, is_now, where)
        elif recorded.tree != now.tree:
            self.note("output", path, _shown(recorded.tree), _shown(now.tree), where)

    def note_missing(self, paths: list[str], where: str) -> None:
        """Note recorded steps that were not yielded again."""
        for path in paths:
            self.note("missing", path, f"the step {path!r}", "nothing of it", where)

    def note(self, kind: str, path: str, recorded: str, now: str, where: str) -> None:
        """Note a difference, without secrets; see `Difference`."""
        text = self._secrets.text
        self.differences.append(Difference(kind, path, text(recorded), text(now), where, self._place))


@attrs.define(eq=False)
class _Compared(DryResponder):
    """Compares what one generator yields with its record, and answers from the record.

    Attributes:
        second: notes the differences.
        own: the results of its steps.
        nested: the results nested in them.
        waiting: the steps that it has not come to, in the order of the record.
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
        return await self._answered(replay, command.path, command.step)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        if command.step.modifiers.is_ephemeral:
            return await self.second.run(command)
        return await self._answered(replay, command.path, command.step)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        return await self._answered(replay, command.path, command.step)

    async def _answered(self, replay: Replay, path: str, step: Step[Any]) -> Answer | None:
        where, note = replay.where(full=True), self.second.note
        if path not in self.own:
            note("path", path, self.expected, f"the step {path!r}", where)
            return None
        if path != self.waiting[0]:
            note("order", path, f"{self.expected} before it", f"the step {path!r}", where)
        self.waiting.remove(path)
        result = self.own[path]
        if result is None:
            return None  # the run ended inside it
        return await self.member(replay, Enter(path, step, where, result, self.nested.get(path, ())))

    async def member(self, replay: Replay, member: Enter) -> Answer | None:
        step, result = member.step, member.result
        assert result is not None
        self.second.note_call(step, result, member.location)
        if step.action.is_composite:
            return await self.composite(replay, member)
        return recorded_answer(step, result)

    async def child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        child, path, result, second = action.workflow, enter.path, enter.result, self.second
        assert result is not None
        end = await second.driven(child, action.inputs, enter.nested, prefix=f"{path}/")
        if end is not None:
            error = result.error
            said = None if error is None else (error.type, error.message)
            before = End(None if error is not None else plain_tree(result.held_output, "output"), said)
            second.compare_end(path, before, end, child.where)
        return recorded_answer(enter.step, result)

    async def members(self, replay: Replay, expansion: Expansion) -> list[Answer]:
        answers: list[Answer] = []
        end, where = expansion.enter.result, expansion.enter.location
        for member in expansion:
            if member.result is not None:
                answer = await self.member(replay, member)
                answers += [] if answer is None else [answer]
            elif not member.nested and end is not None and end.success:  # of one that failed, not all have run
                self.second.note("path", member.path, "no such member", f"the member {member.path!r}", where)
        self.second.note_missing([*expansion.own], where)
        return answers


def _returned(output: Any, workflow: Workflow[Any, Any]) -> End:
    try:
        if type(output) is NextGeneration:
            return End({"continue_as": bind_inputs(workflow, output.inputs).tree})
        return End(codec.encode(output, workflow.output_type, place="output"))
    except Exception as error:
        said = recorded_error(error)
        return End(error=(said.type, said.message))


def _shown(tree: Any) -> str:
    text = codec.dumps(tree)
    return text if len(text) <= 200 else f"{text[:200]}…"
