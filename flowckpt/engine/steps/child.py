"""The inputs of a child workflow, held against what it says of them: before any of it runs, as those of a run are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.results import plain_tree
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.identity.secrets import refuse_secret_names, refuse_secrets
from flowckpt.core.replay import Answer, Crash, Finish, Replay
from flowckpt.core.system.secret import Secret
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.steps.members import CompositeRun, Driven
from flowckpt.engine.steps.run_step import is_still_true, note_restored
from flowckpt.engine.values.failures import recorded_answer, recorded_error, step_failure
from flowckpt.engine.values.inputs import refuse_output, refuse_unfit, reworded
from flowckpt.errors import EncodingError, FlowckptError
from flowckpt.execution.runner import Outcome


def begun_child(action: WorkflowAction, path: str) -> Generator[Any, Any, Any]:
    """Return the generator of a child; where its inputs are refused, one that does nothing but raise that.

    Args:
        action: the child and its inputs.
        path: the step that runs it.
    """
    try:
        refuse_output(action.workflow, path)
        _check_inputs(action, path)
    except FlowckptError as refused:
        return _refusing(refused)
    return action.workflow(**action.inputs)


def _refusing(refused: FlowckptError) -> Generator[Any, Any, Any]:
    nothing: tuple[Any, ...] = ()
    yield from nothing  # what makes it a generator
    raise refused


def _check_inputs(action: WorkflowAction, path: str) -> None:
    """Refuse inputs that are not what the child says, or that could not be recorded.

    Args:
        action: the child and its inputs.
        path: the step that runs it.

    Raises:
        InputError: one is not of its annotated type.
        EncodingError: one could not be recorded; the error names the place.
    """
    child = action.workflow
    for name, value in action.inputs.items():
        annotation: Any = child.hints.get(name, Any)
        if name in child.secret_inputs or isinstance(value, Secret):
            continue
        try:
            codec.encode(value, annotation, place=f"{path}: input {name}")
        except EncodingError as error:
            remedy = (
                f"Annotate the input {name!r}, or register its type (flowckpt.register_type); what no record can hold is "
                "made inside the child, by a step that is .ephemeral()."
            )
            raise reworded(error, error.message, remedy) from error
        refuse_unfit(child, name, value)


# A workflow inside a workflow: a generator of its own, whose steps have their places under the step that yields it.
#
# Its generator is driven at each resume, as the parent's is: what it returns is worked out again from the results of its
# steps, so an edit of what it does between them is seen. Its own record says that it ended, with which inputs, and how.


@attrs.define(eq=False, repr=False)
class ChildWorkflow(CompositeRun):
    """A child workflow of one run."""

    _scope: Driven | None = None

    @property
    def _action(self) -> WorkflowAction:
        action = self.enter.step.action
        assert isinstance(action, WorkflowAction)
        return action

    async def look_back(self) -> bool:
        """Answer its generator from the record; tell whether it had ended, and nothing in it has moved."""
        run, enter, aside = self.context, self.enter, self.context.recorder.aside
        result, nested = enter.result, enter.nested
        if enter.is_spare:
            aside.spare.update({each.path: each for each in nested})
            nested = ()
        if result is not None and not await is_still_true(run, enter.step, result, is_spare=enter.is_spare):
            self.is_stale = True
            if run.judge.policy.reuse is ReuseMode.INPUTS and not run.judge.is_forced(enter.path):
                aside.spare.update({each.path: each for each in nested})
            else:
                aside.dropped += nested
            nested = ()
        child = self._action.workflow
        has_begun = nested or (result is not None and result.success and not self.is_stale)
        replay = Replay(
            child(**self._action.inputs) if has_begun else begun_child(self._action, enter.path),
            nested,
            child.name,
            prefix=f"{enter.path}/",
            drops_what_changed=not enter.is_bound or self.is_stale,
            aside=aside,
            is_repeated=bool(nested),
        )
        self._scope = self.new_scope(run, replay)
        is_ended = await self._scope.look_back()
        self.is_stale = self.is_stale or self._scope.is_stale
        if result is not None and is_ended and not self.is_stale:
            outcome, error = self._outcome(await self._scope.run())
            if error is None and result.success and outcome.tree == plain_tree(result.held_output, "output"):
                self.answered((outcome.value, None))
            elif error is not None and not result.success:
                self.answered(recorded_answer(enter.step, result))
            else:
                self.is_stale = True  # the generator makes something else of the same results
        if result is not None and (self.is_stale or not is_ended):
            aside.dropped.append(result)
            return False
        if result is None or not is_ended:
            return False
        await note_restored(run, enter.step, result, is_spare=enter.is_spare)
        return True

    async def run(self) -> Answer:
        """Drive its generator to its end, and record how it ended.

        Raises:
            Suspended: it waits; called again, it continues from there.
        """
        run, path, step = self.context, self.enter.path, self.enter.step
        refuse_secret_names(step, path, run.secrets)
        if self._scope is None:
            await self.look_back()
        assert self._scope is not None
        await self.begin()
        outcome, error = self._outcome(await self._scope.run())
        await run.recorder.save_start()
        failure = None if error is None else recorded_error(error, path=path, secrets=run.secrets)
        await self.end(outcome, failure)
        return self.answered((outcome.value, None) if failure is None else (None, step_failure(path, failure)))

    def _outcome(self, end: Finish | Crash) -> tuple[Outcome, BaseException | None]:
        """Return what its end comes to: the output as it is recorded and as the parent gets it, or the error."""
        if isinstance(end, Crash):
            if not isinstance(end.error, Exception | SystemExit):
                raise end.error
            return Outcome(), end.error
        annotation: Any = self._action.workflow.output_type
        try:
            tree = codec.encode(end.output, annotation, place=f"{self.enter.path}: output")
            refuse_secrets(tree, self.context.secrets, f"{self.enter.path}: output")
            return Outcome(codec.decode(tree, annotation), tree), None
        except Exception as error:
            return Outcome(), error
