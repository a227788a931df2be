"""Actions of a run on other runs: it starts a run, or sends a signal. Each happens exactly once, whatever crashes.

    derive the id from the step's path ──► does it exist already? ── no ──► make it durable ──► record the step

A crash before the last arrow repeats the step, which then finds the run or signal that it has already made. A started
run is due at once: this process drives it in parallel while it lives, otherwise `recover` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import attrs

from flowckpt.core import codec
from flowckpt.core.dsl import Workflow
from flowckpt.core.dsl.composites import StartAction
from flowckpt.core.dsl.step import RunAction
from flowckpt.core.dsl.waits import ReplyAction, SignalAction
from flowckpt.core.identity.fingerprint import code_of
from flowckpt.core.identity.secrets import refuse_secrets
from flowckpt.core.records import CheckpointData, History, Reason, Status
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import STARTED_BY, is_not_started
from flowckpt.core.records.wait import birth_of
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_token
from flowckpt.engine.rules.paths import find_ended_wait
from flowckpt.engine.run.checkpointer import Checkpointer, RunFacts, SavePolicy
from flowckpt.engine.run.lease import hold_lease
from flowckpt.engine.run.recorder import Recorder
from flowckpt.engine.session import respond
from flowckpt.engine.values.inputs import BoundInputs, bind_inputs, refuse_output
from flowckpt.engine.values.target import describe_target
from flowckpt.errors import FlowckptError, InputError, RunLockedError, RunMovedOnError, SignalRefusedError
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import await_interruptibly
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from flowckpt.engine.values.result import WorkflowResult

_MOST = 16
"""How many started runs one event loop drives at the same time."""

_LOOK_SECONDS = 1.0
"""How often a run that waits for other runs looks for messages from other processes."""

_log = logging.getLogger(__name__)

Drive = Callable[[Workflow[Any, Any], str], Coroutine[Any, Any, "WorkflowResult"]]
"""Resumes a run by its workflow and id."""


@attrs.frozen(eq=False, repr=False)
class Outbox:
    """Acts on other runs for the steps of one run.

    Attributes:
        store: the store of all these runs.
        clock: the time.
        drive: drives a started run.
        recorder: has the record and the secrets of the acting run.
    """

    store: StoreBase
    clock: Clock
    drive: Drive
    recorder: Recorder

    async def act(self, action: RunAction, call: StepCall) -> Any:
        """Start the run or send the signal, unless an earlier try of the step did; or reply."""
        if isinstance(action, StartAction):
            return await finish_despite_cancel(self._start(action, call))
        if isinstance(action, ReplyAction):
            return self._reply(action, call)
        assert isinstance(action, SignalAction)
        return await finish_despite_cancel(self._signal(action, call))

    async def _start(self, action: StartAction, call: StepCall) -> str:
        workflow = action.workflow
        refuse_output(workflow, call.path)
        bound = bind_inputs(workflow, action.inputs)
        refuse_secrets(bound.tree, self.recorder.judge.secrets, f"{call.path}: inputs")
        run = self._derive_id(call, workflow.name, bound.hash)
        latest = await self.store.load_latest(run)
        if latest is None:
            latest = await self._record_start(workflow, run, bound, call)
        if latest.status is Status.SUSPENDED and is_not_started(latest.metadata, latest.attempt):
            loop_runs().begin(partial(self.drive, workflow, run))
        return run

    async def _record_start(
        self, workflow: Workflow[Any, Any], run: str, bound: BoundInputs, call: StepCall
    ) -> CheckpointData:
        """Make a new run durable; return its first checkpoint, or its newest if another process was faster."""
        try:
            async with hold_lease(self.store, run) as lease:
                if lease.latest is not None:
                    return lease.latest
                metadata = {
                    "target": describe_target(workflow),
                    "tags": {},
                    "defaulted": list(bound.defaulted),
                    "base_path": self.recorder.checkpointer.metadata.get("base_path") or str(Path.cwd()),
                    BIRTH: new_token(16),
                    STARTED_BY: {"workflow_id": call.workflow_id, "path": call.path, "attempt": lease.attempt},
                }
                facts = RunFacts(run, workflow.name, bound.hash, bound.recorded, code_of(workflow.function).fingerprint)
                made = Checkpointer(
                    self.store,
                    self.clock,
                    facts,
                    metadata,
                    lease.attempt,
                    lease.last_sequence,
                    History(),
                    SavePolicy(None, False),
                )
                return await made.save(Reason.STARTED, status=Status.SUSPENDED)
        except RunLockedError:
            latest = await self.store.load_latest(run)
            if latest is None:
                raise
            return latest

    async def _signal(self, action: SignalAction, call: StepCall) -> None:
        data = codec.encode(action.data, place=f"{call.path}: data")
        refuse_secrets({"name": action.signal, "data": data}, self.recorder.judge.secrets, f"{call.path}: data")
        signal_id = self._derive_id(call, action.run, action.signal, data)
        turn = 0
        while (
            action.run == call.workflow_id and signal_id in self.recorder.waits.taken
        ):  # its wait was undone, and waits again
            turn += 1
            signal_id = self._derive_id(call, action.run, action.signal, data, turn)
        if await respond.was_sent(self.store, action.run, signal_id):
            return
        sender = f"run {call.workflow_id}"
        try:
            await respond.send_signal(
                self.store, self.clock, action.run, action.signal, data=action.data, by=sender, signal_id=signal_id
            )
        except SignalRefusedError:
            if not await respond.was_sent(self.store, action.run, signal_id):
                raise

    def _reply(self, action: ReplyAction, call: StepCall) -> Any:
        """Return the reply; the sender reads it from the record of the step."""
        if find_ended_wait(self.recorder.checkpointer.history.results, action.to, call.path) is None:
            raise InputError(
                f"step {call.path!r} replies to {action.to!r}, but no .wait() with this name or path has ended",
                parameter="to",
                remedy="Give the name of the step that waited, or its path: .reply('parallel/[order]', …).",
            )
        return action.value

    def _derive_id(self, call: StepCall, *what: Any) -> str:
        """Return an id that depends only on the run and the step, so that every try of the step gets the same one."""
        generation = [call.generation] if call.generation > 1 else []
        place = [birth_of(self.recorder.checkpointer.metadata), call.workflow_id, *generation, call.path, *what]
        return hashlib.sha256(json.dumps(place).encode()).hexdigest()[:26]


# The runs of one event loop that act on each other.


class LoopRuns:
    """The runs of one event loop that may signal each other: runs that act on other runs, and the runs they started.

    A run that only waits stays in the process as long as another run is active, because that one may end its wait.

    Attributes:
        tasks: the tasks that drive the started runs.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[WorkflowResult | None]] = set()
        self._room = asyncio.Semaphore(_MOST)
        self._active: set[object] = set()
        self._resting: dict[object, int] = {}
        self._changes = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def enter(self, member: object) -> None:
        """Count a run as active, until it leaves."""
        self._active.add(member)
        self._note_change()

    def leave(self, member: object) -> None:
        """Stop counting a run as active; does nothing if it is not counted."""
        self._active.discard(member)
        self._note_change()

    def begin(self, drive: Callable[[], Coroutine[Any, Any, WorkflowResult]]) -> None:
        """Drive a started run in a task of the loop."""
        task = asyncio.get_running_loop().create_task(self._drive(drive), context=Context())
        self.tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[WorkflowResult | None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            self._failure = task.exception() or self._failure

    async def _drive(self, drive: Callable[[], Coroutine[Any, Any, WorkflowResult]]) -> WorkflowResult | None:
        try:
            async with self._room:
                return await drive()
        except (RunLockedError, RunMovedOnError):
            return None  # another process drives it, or somebody has ended it
        except FlowckptError as error:
            _log.warning("a run started by this process has stopped: %s", error.message)
            return None
        except SystemExit as ended:  # it ends that run only, as in a child workflow
            _log.warning("a run started by this process called sys.exit(%r), and has failed", ended.code)
            return None

    async def rest(self, member: object, can_end: Callable[[], Awaitable[bool]]) -> bool:
        """Wait while another run may still end a wait of this run; return whether a wait can end.

        Args:
            member: the run.
            can_end: returns whether one of the run's waits can end now.
        """
        self.leave(member)
        self._resting[member] = -1
        try:
            while True:
                seen, changed = self._changes, self._changed
                if await can_end():
                    return True
                self._resting[member] = seen
                # No run is active, and every resting run has looked since the last change: no message can arrive from
                # here.
                if not self._active and all(each == self._changes for each in self._resting.values()):
                    return False
                if seen == self._changes:
                    with contextlib.suppress(TimeoutError):  # a message from another process
                        await asyncio.wait_for(changed.wait(), _LOOK_SECONDS)
        finally:
            del self._resting[member]
            self.enter(member)

    def _note_change(self) -> None:
        self._changes += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def join(self, interrupts: Interrupts) -> None:
        """Wait until the started runs have ended or are suspended; a signal suspends them.

        Raises:
            BaseException: an error that is not a `FlowckptError` ended one of them.
        """
        while running := set(self.tasks):
            try:
                await await_interruptibly(asyncio.wait(running), interrupts)
            except asyncio.CancelledError:
                await self.stop()
                if not interrupts.pending_signal:
                    raise
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """Suspend the started runs."""
        while running := set(self.tasks):
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


_loop_runs: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopRuns] = WeakKeyDictionary()


def loop_runs() -> LoopRuns:
    """Return the runs of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _loop_runs:
        _loop_runs[loop] = LoopRuns()
    return _loop_runs[loop]
