"""Finding out how recorded steps are undone: the generator is asked, and answered from the record.

Only what it yields says how. The record binds nobody here: edited code may yield steps that were never recorded, and not
be told that it changed. Such a step is not run. What stands for its output may be handed on, and ends the search where
the generator uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.composites import FanOutAction, WorkflowAction, place_under
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.replay import Crash, Enter, Execute, Finish, Replay, Restore
from flowckpt.core.replay.replay import SetAside, is_another, split_record
from flowckpt.engine.steps.restore import Answer
from flowckpt.engine.values.failures import failed_step, fan_out_failure, step_failure
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, not_run
from flowckpt.errors import DecodingError
from flowckpt.execution.runner import restored_value

MOST_NOT_RUN = 200
"""So many steps that were never recorded are passed over: a loop may yield them for ever."""

RunsEphemeral: TypeAlias = Callable[[Execute], Awaitable[Answer]]
TellsFound: TypeAlias = Callable[[Step[Any], StepResult], Awaitable[None]]


@attrs.define(eq=False)
class UndoSearch:
    """Asks a workflow how its recorded steps are undone.

    Attributes:
        ephemeral: does a step that is run at each resume, for the code that undoes may need its output; None for a plan,
            which runs nothing.
        found: told each recorded step that was found.
        aside: the recorded results that have not found their step.
        replays: the generators that were begun, to be closed when all is over.
        undoable: the steps that say how they are undone, by path.
        yielded: the steps that were found, and may say so or not.
        unreadable: why the output of a step cannot be given to what undoes it, by path.
        ends_at: why it sees no further, where that is not the end of the record.
        is_blind: whether a plan sees no further where the resume does.
    """

    ephemeral: RunsEphemeral | None = None
    found: TellsFound | None = None
    aside: SetAside = attrs.field(init=False, factory=SetAside)
    replays: list[Replay] = attrs.field(factory=list)
    undoable: dict[str, Step[Any]] = attrs.field(init=False, factory=dict)
    yielded: set[str] = attrs.field(init=False, factory=set)
    unreadable: dict[str, str] = attrs.field(init=False, factory=dict)
    ends_at: str = attrs.field(init=False, default="")
    is_blind: bool = attrs.field(init=False, default=False)
    _passed: int = attrs.field(init=False, default=0)
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
        command = replay.start()
        while not isinstance(command, Finish | Crash):
            answer: Answer | None
            if isinstance(command, Restore):
                answer = await self._restored(command.step, command.result)
            elif isinstance(command, Enter):
                answer = await self._entered(command)
            elif command.step.modifiers.is_ephemeral:
                answer = await self._ephemeral(command)
            else:
                answer = None
            if answer is None:
                if not self._may_pass(command.path, prefix):
                    return
                answer = not_run(Execute(command.path, command.step, "")), None
            value, failure = answer
            command = replay.send(value) if failure is None else replay.throw(failure)
        if isinstance(command, Crash):
            self._stopped(command.error)

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

    def _may_pass(self, path: str, prefix: str) -> bool:
        """Tell whether a step without an output is passed over: recorded results of its generator still wait for theirs."""
        if not any(each.startswith(prefix) for each in self.aside.spare):
            return False
        self.ends_at = f"the workflow yields the step {path!r}, which was not recorded"
        self._passed += 1
        return self._passed <= MOST_NOT_RUN

    async def _ephemeral(self, command: Execute) -> Answer:
        if self.ephemeral is None:
            self._not_run.add(command.path)
            return not_run(command), None
        return await self.ephemeral(command)

    async def _restored(self, step: Step[Any], result: StepResult) -> Answer:
        path = result.path
        self.yielded.add(path)
        if self.found is not None:
            await self.found(step, result)
        if not result.success:
            return None, step_failure(path, result.error or StepError("", ""))
        try:
            value = restored_value(step, result)
        except DecodingError as error:
            self.unreadable[path] = error.message
            return not_run(Execute(path, step, "")), None
        if step.modifiers.rollback is not None:
            self.undoable[path] = step
        return value, None

    # --- steps that are made of steps ------------------------------------------------------------------------------

    async def _entered(self, enter: Enter) -> Answer | None:
        """Ask a composite; return how it ended, as the record says, or None where it does not say."""
        action = enter.step.action
        if isinstance(action, FanOutAction):
            return await self._fan_out(enter, action)
        assert isinstance(action, WorkflowAction)
        self.aside.spare.update({each.path: each for each in enter.nested})
        child = action.workflow
        await self._driven(child(**action.inputs), child.name, f"{enter.path}/")
        return None if enter.result is None else await self._restored(enter.step, enter.result)

    async def _fan_out(self, enter: Enter, action: FanOutAction) -> Answer | None:
        path, end = enter.path, enter.result
        own, nested = split_record(enter.nested, f"{path}/")
        answers: list[Answer] = []
        try:
            for place, step in action.members(enter.step):
                if not own and end is None:
                    break
                at = place_under(path, place)
                member = Enter(at, step, enter.location, own.pop(at, None), nested.pop(at, []))
                answer = await self._member(member)
                if answer is None and end is not None and end.success:
                    answer = not_run(Execute(at, step, "")), None
                answers += [] if answer is None else [answer]
        except (PlanStopped, Exception) as error:  # what makes the items
            if isinstance(error, PlanStopped):
                self._stopped(error)
            else:
                self.ends_at = f"the items of {path!r} cannot be made: {type(error).__name__}: {error}"[:300]
            return None
        finally:
            left = [
                *(each for each in own.values() if each is not None),
                *(one for each in nested.values() for one in each),
            ]
            self.aside.dropped += left
        if end is None:
            return None
        self.yielded.add(path)
        if self.found is not None:
            await self.found(enter.step, end)
        if end.success:
            return action.gathered([value if failure is None else failure for value, failure in answers]), None
        error_of = end.error or StepError("", "")
        failures = {failure.path: failure for _, failure in answers if failure is not None}
        causes = [failures[each] for each in error_of.causes if each in failures]
        return None, fan_out_failure(path, error_of, causes)

    async def _member(self, member: Enter) -> Answer | None:
        step, result = member.step, member.result
        if result is not None and is_another(step, result):
            self.aside.dropped += [*member.nested, result]
            return None
        if step.action.is_composite:
            return await self._entered(member)
        if step.modifiers.is_ephemeral:
            return await self._ephemeral(Execute(member.path, step, member.location))
        return None if result is None else await self._restored(step, result)
