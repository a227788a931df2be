"""A generator driven again from its record, step by step: what it does otherwise is noted, and it is driven on.

A resume stops at the first difference. This goes on as long as it knows what to answer, so that one look shows them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import Any
from uuid import uuid4

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.results import plain_tree
from flowckpt.core.dsl import Step, path_of
from flowckpt.core.dsl.composites import FanOutAction, WorkflowAction, place_under
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.replay.logger import repeated
from flowckpt.core.replay.replay import Nested, is_another, split_record, where_of
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine.dry.recorded_drive import recorded_answer
from flowckpt.engine.rules.identity import identity_reasons
from flowckpt.engine.run.verification import Verifying
from flowckpt.engine.steps.restore import Answer
from flowckpt.engine.values.failures import fan_out_failure, recorded_error, step_failure
from flowckpt.execution.current_step import NoDesk
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner
from flowckpt.execution.world import World

_DESK = NoDesk("a workflow is only driven again, to compare what it does")


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
        place: `this process` or `another process`.
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
        secrets: the secrets of the run, which nobody is shown.

    Attributes:
        differences: what was not the same again.
        compared: how many recorded steps were come to.
    """

    def __init__(self, place: str, secrets: KnownSecrets) -> None:
        self.differences: list[Difference] = []
        self.compared = 0
        self._place = place
        self._secrets = secrets
        world = World(SystemClock(), random.random, uuid4)
        self._runner = StepRunner(Interrupts(), Verifying(None, None), secrets, world)

    async def driven(
        self,
        generator: Generator[Any, Any, Any],
        recorded: Iterable[StepResult],
        defined: str,
        *,
        prefix: str = "",
        output_type: Any = Any,
    ) -> End | None:
        """Drive a generator to its end; return it, or None where nobody knows how to go on.

        Args:
            generator: the generator, not begun.
            recorded: the results of its steps, and of those nested in them.
            defined: where its workflow is defined.
            prefix: what the paths of its steps begin with.
            output_type: what it says that it returns.
        """
        own, nested = split_record(recorded, prefix)
        waiting, uses = [*own], dict[str, int]()
        go_on: Callable[[Any], Any] = generator.send
        answer: Any = None
        try:
            while True:
                try:
                    with repeated():
                        yielded = go_on(answer)
                except StopIteration as stop:
                    self._note_missing(waiting, defined)
                    return _returned(stop.value, output_type)
                except Exception as error:
                    self._note_missing(waiting, defined)
                    said = recorded_error(error)
                    return End(error=(said.type, said.message))
                where = where_of(generator, full=True)
                if not isinstance(yielded, Step):
                    self._note(
                        "path", "", f"the step {waiting[0]!r}" if waiting else "its end", repr(yielded)[:80], where
                    )
                    return None
                path = prefix + path_of(yielded.name, uses.get(yielded.name, 0))
                uses[yielded.name] = uses.get(yielded.name, 0) + 1
                found = await self._answered(yielded, path, own, nested, waiting, where)
                if found is None:
                    return None
                answer, failure = found
                go_on = generator.send
                if failure is not None:
                    go_on, answer = generator.throw, failure
        finally:
            generator.close()

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
            self._note("error", path, was, is_now, where)
        elif recorded.tree != now.tree:
            self._note("output", path, _shown(recorded.tree), _shown(now.tree), where)

    async def _answered(
        self,
        step: Step[Any],
        path: str,
        own: dict[str, StepResult | None],
        nested: Nested,
        waiting: list[str],
        where: str,
    ) -> Answer | None:
        """Compare a step with its record; return what the generator gets, if anybody knows."""
        if step.modifiers.is_ephemeral:
            outcome = await self._runner.attempt(step, ("", path, 1, 1, {}, step, "", _DESK))
            if outcome.error is None:
                return outcome.value, None
            return None, step_failure(path, recorded_error(outcome.error, path=path))
        if path not in own:
            recorded = f"the step {waiting[0]!r}" if waiting else "its end"
            self._note("path", path, recorded, f"the step {path!r}", where)
            return None
        if path != waiting[0]:
            self._note("order", path, f"the step {waiting[0]!r} before it", f"the step {path!r}", where)
        waiting.remove(path)
        result = own[path]
        if result is None:
            return None  # the run ended inside it
        return await self._compared(step, result, nested.get(path, []), where)

    async def _compared(
        self, step: Step[Any], result: StepResult, nested: list[StepResult], where: str
    ) -> Answer | None:
        self.compared += 1
        if is_another(step, result):
            now = f"{step.action.step_type} {step.action.function_name}".rstrip()
            self._note("function", result.path, f"{result.step_type} {result.function}".rstrip(), now, where)
        else:
            for reason in identity_reasons(step, result, self._secrets):
                self._note("arguments", result.path, "as recorded", reason.detail, where)
        action = step.action
        if isinstance(action, WorkflowAction):
            child = action.workflow
            prefix = f"{result.path}/"
            values = child(**action.inputs)
            end = await self.driven(values, nested, child.where, prefix=prefix, output_type=child.output_type)
            if end is not None:
                error = result.error
                said = None if error is None else (error.type, error.message)
                before = End(None if error is not None else plain_tree(result.held_output, "output"), said)
                self.compare_end(result.path, before, end, child.where)
            return recorded_answer(step, result)
        if isinstance(action, FanOutAction):
            return await self._fan_out(step, action, result, nested, where)
        return recorded_answer(step, result)

    async def _fan_out(
        self, step: Step[Any], action: FanOutAction, result: StepResult, nested: list[StepResult], where: str
    ) -> Answer | None:
        own, below = split_record(nested, f"{result.path}/")
        answers: list[Answer] = []
        for place, member in action.members(step):
            path = place_under(result.path, place)
            if path not in own:
                if result.success:
                    self._note("path", path, "no such member", f"the member {path!r}", where)
                continue  # of one that failed, not all have run
            recorded = own.pop(path)
            if recorded is not None:
                answer = await self._compared(member, recorded, below.get(path, []), where)
                if answer is not None:
                    answers.append(answer)
        self._note_missing([*own], where)
        if result.success:
            return action.gathered([value if failure is None else failure for value, failure in answers]), None
        error = result.error or StepError("", "")
        failures = {failure.path: failure for _, failure in answers if failure is not None}
        return None, fan_out_failure(result.path, error, [failures[each] for each in error.causes if each in failures])

    def _note_missing(self, paths: list[str], where: str) -> None:
        for path in paths:
            self._note("missing", path, f"the step {path!r}", "nothing of it", where)

    def _note(self, kind: str, path: str, recorded: str, now: str, where: str) -> None:
        text = self._secrets.text
        self.differences.append(Difference(kind, path, text(recorded), text(now), where, self._place))


def _returned(output: Any, output_type: Any) -> End:
    try:
        return End(codec.encode(output, output_type, place="output"))
    except Exception as error:
        said = recorded_error(error)
        return End(error=(said.type, said.message))


def _shown(tree: Any) -> str:
    text = codec.dumps(tree)
    return text if len(text) <= 200 else f"{text[:200]}…"
