"""A workflow inside a workflow: a generator of its own, whose steps have their places under the step that yields it.

Its generator is driven at each resume, as the parent's is: what it returns is worked out again from the results of its
steps, so an edit of what it does between them is seen. Its own record says that it ended, with which inputs, and how.
"""

from __future__ import annotations

from typing import Any

import attrs

from flowckpt import codec
from flowckpt.checkpoint import StepError
from flowckpt.codec.results import plain_tree
from flowckpt.dsl.composites import WorkflowAction
from flowckpt.engine.child_inputs import begun_child
from flowckpt.engine.composite import CompositeRun
from flowckpt.engine.failures import recorded_error, step_failure
from flowckpt.engine.looking_back import Answer, is_still_true
from flowckpt.engine.members import Driven
from flowckpt.events import StepRestored
from flowckpt.execution.redaction import refuse_secret_names, refuse_secrets
from flowckpt.execution.runner import Outcome
from flowckpt.plan.identity import arguments_of
from flowckpt.plan.policy import ReuseMode
from flowckpt.replay import Crash, Finish, Replay


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
        attempt, enter, aside = self.attempt, self.enter, self.attempt.aside
        result, nested = enter.result, enter.nested
        if enter.is_spare:
            aside.spare.update({each.path: each for each in nested})
            nested = ()
        if result is not None and not await is_still_true(attempt, enter.step, result, is_spare=enter.is_spare):
            self.is_stale = True
            if attempt.judge.policy.reuse is ReuseMode.INPUTS and not attempt.judge.is_forced(enter.path):
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
        self._scope = self.new_scope(attempt, replay)
        is_ended = await self._scope.look_back()
        self.is_stale = self.is_stale or self._scope.is_stale
        if result is not None and is_ended and not self.is_stale:
            outcome, error = self._outcome(await self._scope.run())
            if error is None and result.success and outcome.tree == plain_tree(result.held_output, "output"):
                self.answered(outcome.value)
            elif error is not None and not result.success:
                self.answered(None, step_failure(enter.path, result.error or StepError("", "")))
            else:
                self.is_stale = True  # the generator makes something else of the same results
        if result is not None and (self.is_stale or not is_ended):
            aside.dropped.append(result)
            return False
        if result is None or not is_ended:
            return False
        if enter.is_spare:
            attempt.keep(result)
        if enter.step.modifiers.rollback is not None and result.success:
            attempt.undoable[enter.path] = enter.step
        if attempt.tell is not None:
            told = StepRestored(attempt.workflow_id, enter.path, result.success, result.duration_ms, "workflow")
            await attempt.tell(told)
        return True

    async def run(self) -> Answer:
        """Drive its generator to its end, and record how it ended.

        Raises:
            Suspended: it waits; called again, it goes on from there.
        """
        attempt, path, step = self.attempt, self.enter.path, self.enter.step
        refuse_secret_names(step, path, attempt.secrets)
        if self._scope is None:
            await self.look_back()
        assert self._scope is not None
        await self.begin()
        outcome, error = self._outcome(await self._scope.run())
        await attempt.begin()
        failure = None if error is None else recorded_error(error, path=path, secrets=attempt.secrets)
        await self.end(outcome, failure, arguments=arguments_of(step.action, attempt.secrets))
        if failure is None:
            return self.answered(outcome.value)
        return self.answered(None, step_failure(path, failure))

    def _outcome(self, end: Finish | Crash) -> tuple[Outcome, BaseException | None]:
        """Return what its end comes to: the output as it is recorded and as the parent gets it, or the error."""
        if isinstance(end, Crash):
            if not isinstance(end.error, Exception | SystemExit):
                raise end.error
            return Outcome(), end.error
        annotation: Any = self._action.workflow.output_type
        try:
            tree = codec.encode(end.output, annotation, place=f"{self.enter.path}: output")
            refuse_secrets(tree, self.attempt.secrets, f"{self.enter.path}: output")
            return Outcome(codec.decode(tree, annotation), tree), None
        except Exception as error:
            return Outcome(), error
