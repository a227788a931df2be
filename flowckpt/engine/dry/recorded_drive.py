"""A generator answered with its recorded results, for whoever wants to see its steps. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.composites import FanOutAction, WorkflowAction, place_under
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.replay import Crash, Enter, Execute, Finish, Replay, Restore
from flowckpt.core.replay.replay import split_record
from flowckpt.engine.steps.restore import Answer
from flowckpt.engine.values.failures import fan_out_failure, step_failure
from flowckpt.engine.values.placeholders import not_run
from flowckpt.execution.runner import restored_value

Visit = Callable[[Step[Any], StepResult], Answer]
"""Told a step and its recorded result; returns what the generator is to get."""


def recorded_answer(step: Step[Any], result: StepResult) -> Answer:
    """Return what a generator gets for a recorded result.

    Args:
        step: the step as it is yielded now.
        result: its recorded result.

    Raises:
        DecodingError: the record does not fit the step's annotation.
    """
    if result.success:
        return restored_value(step, result), None
    return None, step_failure(result.path, result.error or StepError("", ""))


def follow(replay: Replay, visit: Visit) -> Execute | Enter | Finish | Crash:
    """Answer a generator with its recorded results; return its end, or the first step that has none.

    Args:
        replay: the generator and its record.
        visit: told each recorded step, those nested in others too; may raise, to go no further.

    Raises:
        PlanStopped: the generator needs the output of a step that is run at each resume.
        WorkflowChangedError: it yields something else than the record says.
    """
    command = replay.start()
    while True:
        answer: Answer | None
        if isinstance(command, Finish | Crash):
            return command
        if isinstance(command, Restore):
            answer = visit(command.step, command.result)
        elif isinstance(command, Enter):
            answer = _entered(replay, command, visit)
        else:
            answer = (not_run(command), None) if command.step.modifiers.is_ephemeral else None
        if answer is None:
            assert isinstance(command, Execute | Enter)
            return command
        value, failure = answer
        command = replay.send(value) if failure is None else replay.throw(failure)


def _entered(replay: Replay, enter: Enter, visit: Visit) -> Answer | None:
    action = enter.step.action
    if isinstance(action, FanOutAction):
        return _fan_out(replay, enter, action, visit)
    assert isinstance(action, WorkflowAction)
    child = Replay(
        action.workflow(**action.inputs),
        enter.nested,
        action.workflow.name,
        prefix=f"{enter.path}/",
        aside=replay.aside,
        is_muted=True,
    )
    try:
        end = follow(child, visit)
    finally:
        child.close()
    if enter.result is None or not isinstance(end, Finish | Crash):
        return None
    return recorded_answer(enter.step, enter.result)


def _fan_out(replay: Replay, enter: Enter, action: FanOutAction, visit: Visit) -> Answer | None:
    own, nested = split_record(enter.nested, f"{enter.path}/")
    answers: list[Answer] = []
    for place, step in action.members(enter.step):
        if not own and enter.result is None:
            break
        path = place_under(enter.path, place)
        result, below = own.pop(path, None), nested.pop(path, [])
        answer: Answer | None = None
        if step.action.is_composite:
            answer = _entered(replay, Enter(path, step, enter.location, result, below), visit)
        elif step.modifiers.is_ephemeral:
            answer = not_run(Execute(path, step, enter.location)), None
        elif result is not None:
            answer = visit(step, result)
        if answer is not None:
            answers.append(answer)
    result = enter.result
    if result is None:
        return None
    if result.success:
        return action.gathered([value if failure is None else failure for value, failure in answers]), None
    error = result.error or StepError("", "")
    failures = {failure.path: failure for _, failure in answers if failure is not None}
    return None, fan_out_failure(enter.path, error, [failures[each] for each in error.causes if each in failures])
