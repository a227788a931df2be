"""Finding out how recorded steps are undone: the generator is asked, and answered from the record.

Only what it yields says how. The record binds nothing here: edited code may yield steps that were never recorded, and not
be told that it changed. Such a step is not run. What stands for its output may be handed on, and ends the search where
the generator uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.records import StepResult
from flowckpt.core.replay import Answer, Crash, DroppedResults, Enter, Execute, Replay, Restore, drive, expand
from flowckpt.core.replay.replay import is_another
from flowckpt.engine.dry.recorded_drive import DryResponder
from flowckpt.engine.values.failures import failed_step, recorded_answer, recorded_fan_out
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, not_run
from flowckpt.errors import DecodingError

MOST_NOT_RUN = 200
"""So many steps that were never recorded are passed over: a loop may yield them for ever."""

RunsEphemeral: TypeAlias = Callable[[Execute], Awaitable[Answer]]
TellsFound: TypeAlias = Callable[[Step[Any], StepResult], Awaitable[None]]


@attrs.define(eq=False)
class UndoSearch(DryResponder):
    """Asks a workflow how its recorded steps are undone.

    Attributes:
        ephemeral: runs a step that runs at each resume, for the code that undoes may need its output; None for a plan,
            which runs nothing.
        found: called with each recorded step that was found.
        aside: the recorded results that have not found their step.
        replays: the generators that were started, to be closed when all is over.
        undoable: the steps that say how they are undone, by path.
        yielded: the steps that were found, and may say so or not.
        unreadable: why the output of a step cannot be given to what undoes it, by path.
        ends_at: why it sees no further, where that is not the end of the record.
        is_blind: whether a plan sees no further where the resume does.
    """

    ephemeral: RunsEphemeral | None = None
    found: TellsFound | None = None
    aside: DroppedResults = attrs.field(init=False, factory=DroppedResults)
    replays: list[Replay] = attrs.field(factory=list)
    undoable: dict[str, Step[Any]] = attrs.field(init=False, factory=dict)
    yielded: set[str] = attrs.field(init=False, factory=set)
    unreadable: dict[str, str] = attrs.field(init=False, factory=dict)
    ends_at: str = attrs.field(init=False, default="")
    is_blind: bool = attrs.field(init=False, default=False)
    _passed_over: int = attrs.field(init=False, default=0)
    _not_run: set[str] = attrs.field(init=False, factory=set)

    async def search(
        self, generator: Generator[Any, Any, Any], workflow_name: str, results: Iterable[StepResult]
    ) -> None:
        """Drive a generator as far as the record and what was edited allow.

        Args:
            generator: that of the workflow, not yet started.
            workflow_name: its workflow.
            results: the record, without what was undone.
        """
        self.aside.spare.update({each.path: each for each in results})
        await self._driven(generator, workflow_name, "")

    async def _driven(self, generator: Generator[Any, Any, Any], workflow_name: str, prefix: str) -> None:
        replay = Replay(
            generator, (), workflow_name, prefix=prefix, drops_what_changed=True, aside=self.aside, is_muted=True
        )
        self.replays.append(replay)
        end = await drive(replay, self)
        if isinstance(end, Crash):
            self._stopped(end.error)

    def _stopped(self, error: BaseException) -> None:
        """Note why a generator went no further; what it raised after its last recorded step is how it ended before."""
        if isinstance(error, SecretNeeded):
            self.is_blind = True
            self.ends_at = f"the workflow uses the secret input {error.args[0]!r}, which no record holds"
        elif isinstance(error, PlanStopped):
            self.is_blind = self.is_blind or error.args[0] in self._not_run
            self.ends_at = f"the workflow uses the output of {error.args[0]!r}, which was not run"
        elif not isinstance(error, Exception):
            raise error
        elif self.aside.spare and failed_step(error) not in self.yielded:
            self.ends_at = f"the workflow raises {type(error).__name__}: {error}"[:300]

    async def restore(self, replay: Replay, command: Restore) -> Answer:
        """Note how the step is undone, and answer with its result."""
        return await self._recorded(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Run an ephemeral step; pass over any other."""
        if not command.step.modifiers.is_ephemeral:
            return self._passed(replay, command.path, command.step)
        if self.ephemeral is None:
            self._not_run.add(command.path)
            return not_run(command), None
        return await self.ephemeral(command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Search a composite; pass over one that has not ended."""
        answer = await self.composite(replay, command)
        return self._passed(replay, command.path, command.step) if answer is None else answer

    def _passed(self, replay: Replay, path: str, step: Step[Any]) -> Answer | None:
        """Pass over a step without an output, if recorded results of its generator still wait for their steps."""
        if not any(each.startswith(replay.prefix) for each in self.aside.spare):
            return None
        self.ends_at = f"the workflow yields the step {path!r}, which was not recorded"
        self._passed_over += 1
        return (not_run(Execute(path, step, "")), None) if self._passed_over <= MOST_NOT_RUN else None

    async def _recorded(self, step: Step[Any], result: StepResult) -> Answer:
        path = result.path
        await self._found(step, result)
        try:
            answer = recorded_answer(step, result)
        except DecodingError as error:
            self.unreadable[path] = error.message
            return not_run(Execute(path, step, "")), None
        if result.success and step.modifiers.rollback is not None:
            self.undoable[path] = step
        return answer

    async def _found(self, step: Step[Any], result: StepResult) -> None:
        self.yielded.add(result.path)
        if self.found is not None:
            await self.found(step, result)

    async def child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        """Search a child workflow; return its recorded end, if there is one."""
        self.aside.spare.update({each.path: each for each in enter.nested})
        child = action.workflow
        await self._driven(child(**action.inputs), child.name, f"{enter.path}/")
        return None if enter.result is None else await self._recorded(enter.step, enter.result)

    async def fan_out(self, replay: Replay, enter: Enter) -> Answer | None:
        """Search the members of a fan-out; return its recorded end, if there is one."""
        end, expansion = enter.result, expand(enter)
        try:
            answers = await self.members(replay, expansion)
        except (PlanStopped, Exception) as error:  # what makes the items
            if isinstance(error, PlanStopped):
                self._stopped(error)
            else:
                self.ends_at = f"the items of {enter.path!r} cannot be made: {type(error).__name__}: {error}"[:300]
            return None
        finally:
            self.aside.dropped += expansion.take_rest()
        if end is None:
            return None
        await self._found(enter.step, end)
        return recorded_fan_out(enter, end, answers)

    async def member(self, replay: Replay, member: Enter) -> Answer | None:
        """Search a member, if its record is that of the same step."""
        if member.result is not None and is_another(member.step, member.result):
            self.aside.dropped += [*member.nested, member.result]
            return None
        return await super().member(replay, member)
