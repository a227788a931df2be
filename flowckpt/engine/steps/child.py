"""Run a child workflow: check its inputs before any of its steps runs, drive its generator, record how it ended."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.identity.secrets import refuse_secret_names, refuse_secrets
from flowckpt.core.replay import Answer, Crash, Finish, Replay
from flowckpt.core.system.secret import Secret
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.steps.members import CompositeRun
from flowckpt.engine.steps.run_step import Scope, is_still_valid, new_scope, note_restored
from flowckpt.engine.values.failures import read_answer, step_failure
from flowckpt.engine.values.inputs import refuse_output, refuse_unfit, reword_error
from flowckpt.errors import EncodingError, FlowckptError
from flowckpt.execution.errors import record_error
from flowckpt.execution.runner import Outcome


def start_child(action: WorkflowAction, path: str) -> Generator[Any, Any, Any]:
    """Return the generator of a child; if its inputs are invalid, a generator that only raises the error."""
    try:
        refuse_output(action.workflow, path)
        _check_inputs(action, path)
    except FlowckptError as refused:
        return _make_raising(refused)
    return action.workflow.make_generator(action.inputs)


def _make_raising(refused: FlowckptError) -> Generator[Any, Any, Any]:
    nothing: tuple[Any, ...] = ()
    yield from nothing  # makes this function a generator
    raise refused


def _check_inputs(action: WorkflowAction, path: str) -> None:
    """Check that the inputs fit the child's annotations and can be recorded.

    Raises:
        InputError: an input does not have its annotated type.
        EncodingError: an input cannot be recorded; the error names the place.
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
                f"Annotate the input {name!r}, or register its type (flowckpt.register_type). Create a value that "
                "cannot be recorded inside the child, in a step marked .ephemeral()."
            )
            raise reword_error(error, error.message, remedy) from error
        refuse_unfit(child, name, value)


# A child workflow has its own generator. The paths of its steps start with the path of the step that yields the child.
#
# Each resume drives the child's generator, like the parent's: the output is computed again from the results of its
# steps, so an edit of the code between them is noticed. The child's own record holds its inputs and how it ended.


@attrs.define(eq=False, repr=False)
class ChildWorkflow(CompositeRun):
    """A child workflow of one run."""

    _scope: Scope | None = None

    @property
    def _action(self) -> WorkflowAction:
        action = self.enter.step.action
        assert isinstance(action, WorkflowAction)
        return action

    async def look_back(self) -> bool:
        """Answer the generator from the record; return whether the child had ended and nothing in it has changed."""
        run, enter, aside = self.context, self.enter, self.context.recorder.aside
        result, nested = enter.result, enter.nested
        if enter.is_spare:
            aside.spare.update({each.path: each for each in nested})
            nested = ()
        if result is not None and not await is_still_valid(run, enter.step, result, is_spare=enter.is_spare):
            self.is_stale = True
            if run.judge.policy.reuse is ReuseMode.INPUTS and not run.judge.is_forced(enter.path):
                aside.spare.update({each.path: each for each in nested})
            else:
                aside.dropped += nested
            nested = ()
        child = self._action.workflow
        has_begun = nested or (result is not None and result.success and not self.is_stale)
        replay = Replay(
            child.make_generator(self._action.inputs) if has_begun else start_child(self._action, enter.path),
            nested,
            child.name,
            prefix=f"{enter.path}/",
            drops_what_changed=not enter.is_bound or self.is_stale,
            aside=aside,
            is_repeated=bool(nested),
        )
        self._scope = new_scope(run, replay)
        is_ended = await self._scope.look_back()
        self.is_stale = self.is_stale or self._scope.is_stale
        if result is not None and is_ended and not self.is_stale:
            outcome, error = self._encode_outcome(await self._scope.run())
            if error is None and result.success and outcome.tree == plain_tree(result.held_output, "output"):
                self.keep_answer((outcome.value, None))
            elif error is not None and not result.success:
                self.keep_answer(read_answer(enter.step, result))
            else:
                self.is_stale = True  # the generator now returns something else for the same results
        if result is not None and (self.is_stale or not is_ended):
            aside.dropped.append(result)
            return False
        if result is None or not is_ended:
            return False
        await note_restored(run, enter.step, result, is_spare=enter.is_spare)
        return True

    async def run(self) -> Answer:
        """Drive the generator to its end, and record how the child ended.

        Raises:
            Suspended: the child waits; call this method again to continue from there.
        """
        run, path, step = self.context, self.enter.path, self.enter.step
        refuse_secret_names(step, path, run.secrets)
        if self._scope is None:
            await self.look_back()
        assert self._scope is not None
        await self.begin()
        outcome, error = self._encode_outcome(await self._scope.run())
        await run.recorder.save_start()
        failure = None if error is None else record_error(error, path=path, secrets=run.secrets)
        await self.end(outcome, failure)
        return self.keep_answer((outcome.value, None) if failure is None else (None, step_failure(path, failure)))

    def _encode_outcome(self, end: Finish | Crash) -> tuple[Outcome, BaseException | None]:
        """Return the child's outcome (the output as recorded and as the parent gets it), or its error."""
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
