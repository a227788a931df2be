"""The fixture `flowckpt`: an engine in memory, a fake clock, and scripted answers to waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

import attrs

from flowckpt.core.dsl import Workflow
from flowckpt.core.records import Status
from flowckpt.core.records.wait import Wait, WaitKind
from flowckpt.core.system.blocking import in_sync
from flowckpt.core.system.ids import new_run_id
from flowckpt.engine import RunOptions, WorkflowEngine, WorkflowResult
from flowckpt.stores.memory import MemoryCheckpointStore
from flowckpt.testing.clock import FakeClock
from flowckpt.testing.crashes import CrashReport, explore_crashes

MOST_RESUMES = 10_000


@attrs.define
class _Script:
    """The answers to the waits of one name."""

    answers: list[Any]
    is_repeated: bool
    by: str
    comment: str

    def take(self) -> Any:
        return self.answers[0] if self.is_repeated else self.answers.pop(0)


class WorkflowTester:
    """Runs workflows in memory without waiting for their sleeps and waits.

    Attributes:
        store: the store, in memory.
        clock: the engine's clock; `clock.advance(60)` moves it.
        engine: an engine with that store and clock.
    """

    def __init__(self) -> None:
        self.store = MemoryCheckpointStore()
        self.clock = FakeClock()
        self.engine = WorkflowEngine(self.store, clock=self.clock)
        self._scripts: dict[str, _Script] = {}

    def answer(self, name: str, *data: Any) -> None:
        """Script the data of a signal: the first wait of this name gets the first data, and so on.

        Args:
            name: the name of the signal.
            *data: the data; a single value is repeated. None by default.
        """
        self._scripts[name] = _Script([*data] or [None], len(data) < 2, "", "")

    def approve(self, name: str, *, by: str = "test", comment: str = "") -> None:
        """Script that every approval of this name is given.

        Args:
            name: the name of the approval.
            by: the name of the approver.
            comment: the reason.
        """
        self._scripts[name] = _Script([True], True, by, comment)

    def reject(self, name: str, *, by: str = "test", comment: str = "") -> None:
        """Script that every approval of this name is refused; see `approve`."""
        self._scripts[name] = _Script([False], True, by, comment)

    def run(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> WorkflowResult:
        """Run a workflow to its end: sleeps move the clock, and waits get their scripted answers.

        A wait without a scripted answer ends by its timeout; if it has none, the result is `suspended`.

        Args:
            workflow: the workflow.
            workflow_id: the run id; a new one by default.
            options: how it is run.
            **inputs: its inputs.
        """
        run = workflow_id or new_run_id()
        result = self.engine.run_sync(workflow, workflow_id=run, options=options, **inputs)
        return self._resume_to_end(workflow, result, options)

    def resume(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Resume a run to its end; see `run`."""
        result = self.engine.resume_sync(workflow, workflow_id=workflow_id, options=options, **inputs)
        return self._resume_to_end(workflow, result, options)

    def explore_crashes(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        may_fail: Collection[str] = (),
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> CrashReport:
        """Explore crashes with the scripted answers; see `flowckpt.testing.explore_crashes`."""
        answers: Mapping[str, Any] = {
            name: script.answers[0] if script.is_repeated else [*script.answers]
            for name, script in self._scripts.items()
        }
        return explore_crashes(workflow, answers=answers, may_fail=may_fail, options=options, **inputs)

    def _resume_to_end(
        self, workflow: Workflow[..., Any], result: WorkflowResult, options: RunOptions | None
    ) -> WorkflowResult:
        answered: set[tuple[str, str]] = set()
        for _ in range(MOST_RESUMES):
            if result.status is not Status.SUSPENDED:
                break
            if not self._answer(result, answered):
                if result.due_at is None:
                    break
                self.clock.advance(max(0.0, (result.due_at - self.clock.now()) / timedelta(seconds=1)))
            result = self.engine.resume_sync(workflow, workflow_id=result.workflow_id, options=options)
        return result

    def _answer(self, result: WorkflowResult, answered: set[tuple[str, str]]) -> bool:
        """Answer the waits that have a script and were not answered; return whether there were any."""
        is_any = False
        for wait in result.waits:
            script, request = self._scripts.get(wait.name), (wait.path, wait.request)
            if wait.kind is WaitKind.SLEEP or script is None or not script.answers or request in answered:
                continue
            answered.add(request)
            self._send(result.workflow_id, wait, script)
            is_any = True
        return is_any

    def _send(self, run: str, wait: Wait, script: _Script) -> None:
        data, engine = script.take(), in_sync(self.engine)
        if wait.kind is WaitKind.SIGNAL:
            engine.signal(run, wait.name, data, by=script.by)
        elif data:
            engine.approve(run, wait.name, by=script.by, comment=script.comment)
        else:
            engine.reject(run, wait.name, by=script.by, comment=script.comment)
