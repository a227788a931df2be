"""One try of a step: its action done, and its output made into what is recorded and what the generator gets."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from flowckpt import codec
from flowckpt.blocking import may_block
from flowckpt.checkpoint import StepResult
from flowckpt.codec.blob import Recorded
from flowckpt.codec.results import plain_tree
from flowckpt.dsl import PythonAction, Step
from flowckpt.execution.annotation import return_annotation
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import run_python, waited
from flowckpt.execution.thread import StepThread

STOPS = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""What ends a run from outside; everything else that a step raises is its failure."""


@attrs.define(eq=False)
class Outcome:
    """How one try of a step ended.

    Attributes:
        value: what the generator gets: the output decoded again, so a resumed run gets the same.
        tree: the output as it is recorded.
        error: what the step raised, or None.
    """

    value: Any = None
    tree: Any = None
    error: BaseException | None = None


class StepRunner:
    """Does the steps of one run.

    Args:
        interrupts: delivers signals to the step that runs.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._thread = StepThread()

    async def attempt(self, step: Step[Any], path: str) -> Outcome:
        """Try a step once.

        Args:
            step: the step.
            path: its path.

        Raises:
            KeyboardInterrupt: a signal came while it ran.
            asyncio.CancelledError: the run was cancelled while it ran.
        """
        modifiers, action = step.modifiers, step.action
        assert isinstance(action, PythonAction)
        try:
            if modifiers.timeout_seconds is None and may_block():  # no coroutine of its own around the call: 0.4 µs
                value = self._interrupts.call(action.function, action.args, action.kwargs)
                if hasattr(type(value), "__await__"):  # inspect.isawaitable takes 0.5 µs
                    value = await waited(value, self._interrupts)
            else:
                value = await run_python(
                    action,
                    path=path,
                    timeout_seconds=modifiers.timeout_seconds,
                    interrupts=self._interrupts,
                    thread=self._thread,
                )
            if modifiers.is_ephemeral:
                return Outcome(value)
            annotation = return_annotation(action.function)
            tree = codec.encode(value, annotation, place=f"{path}: output")
            return Outcome(codec.decode(tree, annotation), tree)
        except STOPS as stop:
            if not _is_raised_by_step(stop):
                raise
            return Outcome(error=stop)
        except (Exception, SystemExit) as error:
            return Outcome(error=error)

    def restored_value(self, step: Step[Any], result: StepResult) -> Any:
        """Return the recorded output of a step as the generator gets it.

        Args:
            step: the step as it is yielded now; its function's annotation says what to build.
            result: the recorded result.

        Raises:
            DecodingError: the record does not fit the annotation.
        """
        action = step.action
        assert isinstance(action, PythonAction)
        held = result.held_output
        tree = held.tree if type(held) is Recorded else plain_tree(held, "output")
        return codec.decode(tree, return_annotation(action.function), place=f"{result.path}: output")

    def close(self) -> None:
        """Let go of the run's thread."""
        self._thread.close()


def _is_raised_by_step(stop: BaseException) -> bool:
    """Tell a step that raised `CancelledError` by itself from a cancel of the run."""
    task = asyncio.current_task()
    return isinstance(stop, asyncio.CancelledError) and task is not None and not task.cancelling()
