"""Recorded outputs that somebody replaces: typed as their steps ask, and recorded as if those had returned them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from flowckpt import codec
from flowckpt.checkpoint import StepResult
from flowckpt.codec.blob import Recorded
from flowckpt.dsl import Step, Workflow
from flowckpt.engine.binding import BoundInputs
from flowckpt.engine.following import follow, recorded_answer
from flowckpt.engine.looking_back import Answer
from flowckpt.engine.not_run import PlanStopped, SecretNeeded, use_missing_secret
from flowckpt.engine.superseded import AT_MOST_ONCE
from flowckpt.errors import InputError
from flowckpt.execution.redaction import refuse_secrets
from flowckpt.execution.runner import output_annotation
from flowckpt.known_secrets import KnownSecrets
from flowckpt.plan.behind import is_within
from flowckpt.plan.identity import arguments_of, fingerprint_of, identity_reasons
from flowckpt.plan.reason import ReasonKind
from flowckpt.plan.undoing import UNDOABLE
from flowckpt.replay import Command, Crash, Replay

EDITED = "edited"
"""Marks a result whose output somebody wrote; its step did not return it."""

Edit: TypeAlias = Callable[[Any], Any]
"""Returns the output, given the annotation of the step's function."""


def as_given(outputs: Mapping[str, Any]) -> dict[str, Edit]:
    """Return edits to values that have their types already.

    Args:
        outputs: the values, by step.
    """
    return {step: functools.partial(_given, value) for step, value in outputs.items()}


def _given(value: Any, annotation: Any) -> Any:
    del annotation
    return value


_MOVES = (ReasonKind.ARGUMENTS, ReasonKind.VERSION)


def edited_results(
    workflow: Workflow[Any, Any], bound: BoundInputs, results: Sequence[StepResult], edits: Mapping[str, Edit]
) -> list[StepResult]:
    """Return the results of the edited steps, driving the generator up to them. Nothing is run.

    Args:
        workflow: the workflow.
        bound: its inputs.
        results: the recorded results up to the last edited step.
        edits: what to put in their place, by path.

    Raises:
        InputError: a step cannot be reached, or the resume would run an earlier one again and drop the edit.
        EncodingError: a value cannot be recorded.
        WorkflowChangedError: the program yields something else than the record says.
    """
    found: list[StepResult] = []
    secrets = bound.known_secrets()
    values = bound.values(workflow, use_missing=use_missing_secret)
    replay = Replay(workflow(**values), results, workflow.name, is_muted=True)

    def visit(step: Step[Any], result: StepResult) -> Answer:
        if result.path in edits:
            edited, value = _edited(step, result, edits[result.path], secrets)
            found.append(edited)
            if len(found) == len(edits):
                raise _AllFoundError
            return value, None
        moved = [reason for reason in identity_reasons(step, result, secrets) if reason.kind in _MOVES]
        if moved:
            raise InputError(
                f"step {result.path!r} stands before an edited one and would run again: {moved[0]}",
                parameter=next(iter(edits)),
                remedy="What follows it is dropped then, the edit too. Edit that step as well, or leave out what "
                "changes it.",
            )
        return recorded_answer(step, result)

    with contextlib.closing(replay), contextlib.suppress(_AllFoundError):
        end = follow(replay, visit)
        raise _unreached(next(path for path in edits if path not in {each.path for each in found}), end, results)
    return found


class _AllFoundError(Exception):
    """Every edited step was come to: no need to go further."""


def _edited(step: Step[Any], result: StepResult, edit: Edit, secrets: KnownSecrets) -> tuple[StepResult, Any]:
    action = step.action
    annotation = output_annotation(action)
    tree = codec.encode(edit(annotation), annotation, place=f"{result.path}: output")
    refuse_secrets(tree, secrets, f"{result.path}: output")
    made = attrs.evolve(
        result,
        success=True,
        output=Recorded(tree),
        error=None,
        duration_ms=0.0,
        started_at=None,
        attempt=0,
        tries=1,
        function=action.function_name,
        version=step.modifiers.version,
        fingerprint=fingerprint_of(action),
        arguments=arguments_of(action, secrets),
        evidence=None,  # its claims were about what the step itself did
        marks=(EDITED, *[mark for mark in result.marks if mark in (AT_MOST_ONCE, UNDOABLE)]),
    )
    return made, codec.decode(tree, annotation)


def _unreached(path: str, command: Command, results: Sequence[StepResult]) -> InputError:
    if any(is_within(result.path, path) and result.path != path for result in results):
        return InputError(
            f"the output of step {path!r} cannot be set: it is put together from those of its members",
            parameter=path,
            remedy="Set the output of a member, by its path.",
        )
    why = "the program, driven by its record, does not come to it"
    if isinstance(command, Crash):
        why = f"the program raises {type(command.error).__name__} before it: {command.error}"
        if isinstance(command.error, SecretNeeded):
            name = command.error.args[0]
            why = f"the program uses the secret input {name!r} before it, which no record holds: give it, -i {name}=…"
        elif isinstance(command.error, PlanStopped):
            why = f"the program needs the output of {command.error.args[0]!r} before it, which is run at each resume"
    return InputError(
        f"the output of step {path!r} cannot be set: {why}",
        parameter=path,
        remedy="Change the code of the step instead, and run again from it on: --from.",
    )
