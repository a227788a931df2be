"""The context that the generators and the steps of one attempt share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import Reason, Status, generation
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.wait import ENDED, WaitKind
from flowckpt.core.replay import Replay
from flowckpt.core.system.clock import Clock
from flowckpt.engine import run
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.run.notify import Notifier
from flowckpt.engine.run.progress import RunServices
from flowckpt.engine.run.recorder import Recorder
from flowckpt.engine.values.superseded import RetryBudget
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import FlowckptError
from flowckpt.execution.claims import ClaimChecker
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner, WorldSources

LOOK_NS = 1_000_000_000
"""The shortest interval at which the owner of a run looks for requests."""


@attrs.define(eq=False, repr=False, slots=False)
class RunContext:
    """One attempt of a run, as its generators and steps share it.

    Attributes:
        world: random numbers and UUIDs.
        clock: the time.
        interrupts: the signals.
        recorder: records the attempt and makes it durable.
        notifier: emits its events and counts its steps.
        judge: decides whether recorded results are reused.
        claims: checks the steps' claims.
        runner: runs the steps.
        waits: the pending waits of its steps.
        budget: the remaining retries of its steps.
        look_at_ns: when to look for requests next, by the clock's `elapsed_ns`.
        rest: waits while another run of this process may still end a wait; returns whether a wait can end.
        generators: the started generators, to be closed at the end.
        services: the engine's services for running steps.
        generation: the number of the run's generation.
    """

    world: WorldSources
    clock: Clock
    interrupts: Interrupts
    recorder: Recorder
    notifier: Notifier
    judge: Judge
    claims: ClaimChecker
    runner: StepRunner
    waits: Waits
    budget: RetryBudget
    look_at_ns: int
    rest: Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]
    generators: list[Replay] = attrs.field(init=False, factory=list)
    services: RunServices = attrs.field(init=False)
    generation: int = attrs.field(init=False, default=1)

    def __attrs_post_init__(self) -> None:
        recorded = self.recorder.checkpointer.metadata.get(generation.KEY)
        self.generation = int(recorded["number"]) if recorded else 1
        self.services = RunServices(self.recorder, self.notifier, self.interrupts, self.clock)

    @property
    def workflow_id(self) -> str:
        """The run."""
        return self.recorder.checkpointer.run.workflow_id

    @property
    def number(self) -> int:
        """The attempt's number."""
        return self.recorder.checkpointer.attempt

    @property
    def secrets(self) -> KnownSecrets:
        """The secrets of the run, including those returned by its steps."""
        return self.judge.secrets

    @cached_property
    def inbox(self) -> run.inbox.Inbox:
        """The messages for the run."""
        checkpointer = self.recorder.checkpointer
        metadata, history = checkpointer.metadata, checkpointer.history
        return run.inbox.Inbox(checkpointer.store, self.workflow_id, metadata, self.clock, self.waits, history)

    @cached_property
    def cache(self) -> run.result_cache.ResultCache:
        """The results of other runs that steps with `.cache()` may take."""
        store = self.recorder.checkpointer.store
        return run.result_cache.ResultCache(store, self.workflow_id, self.claims, self.clock, self.secrets)

    @cached_property
    def requests(self) -> run.inbox.Requests:
        """Requests to the run in the store."""
        saves = self.recorder.checkpointer
        birth, ended = str(saves.metadata.get(BIRTH, "")), saves.metadata.get(ENDED)
        return run.inbox.Requests(saves.store, self.workflow_id, birth, self.interrupts, ended)

    async def poll_requests(self, *, patience: float = 0.0) -> None:
        """Look for requests to the run: a cancel stops the run, other requests are carried out at once.

        Args:
            patience: how many seconds to wait for the store's answer, if more than a moment; a later one is read at the next
                look.
        """
        requests = await self.requests.poll(patience)
        self.look_at_ns = self.clock.elapsed_ns() + LOOK_NS * self.requests.slowdown
        recorder = self.recorder
        if not requests or not recorder.is_start_saved:  # nothing to save while results are still being restored
            return
        checkpointer = recorder.checkpointer
        for each in requests:
            if each.kind is WaitKind.TAG:
                checkpointer.metadata = run.inbox.change_tags(checkpointer.metadata, each.data)
        is_at_rest = checkpointer.attempted is not None and checkpointer.attempted.status is Status.SUSPENDED
        saved = await recorder.checkpoint(Reason.SUSPENDED if is_at_rest else Reason.TRIGGER)
        await recorder.emit_saved(saved)
        if not isinstance(saved, FlowckptError):
            await self.requests.remove(requests)

    async def refuse_doubt(self, step: Step[Any], path: str) -> None:
        """Refuse the resume if an at-most-once step was started and its effect is unknown.

        Raises:
            StepInDoubtError: it is unknown whether the step was done.
        """
        if path in self.recorder.in_doubt:
            await run.in_doubt.refuse_doubt(self, step, path)
