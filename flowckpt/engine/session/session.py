"""One start or one resume of a run, from taking its lease to releasing it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt import maintenance
from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.results import as_view, encode_time
from flowckpt.core.dsl import Workflow
from flowckpt.core.identity.fingerprint import code_of
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.identity.sources import refresh
from flowckpt.core.records import (
    CheckpointData,
    History,
    PartialState,
    Reason,
    Status,
    StepError,
    StepResult,
    generation,
)
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import IMPORTED
from flowckpt.core.records.result import sum_figures
from flowckpt.core.records.wait import ENDED, REQUESTS, STOPPED, TAKEN, birth_of, open_waits
from flowckpt.core.replay import Replay
from flowckpt.core.system import ids
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.declared import type_name
from flowckpt.core.system.functions import versions_of
from flowckpt.engine import dry, session, undo
from flowckpt.engine.rules.crash_loop import CrashCount, limit_of
from flowckpt.engine.rules.judge import Judge, keep_partial
from flowckpt.engine.rules.paths import FAILED_AT, UNFINISHED, list_in_flight
from flowckpt.engine.rules.reasons import LIMITS, ResumePolicy, ReuseMode
from flowckpt.engine.run.checkpointer import Checkpointer, RunFacts, SavePolicy
from flowckpt.engine.run.context import LOOK_NS, RunContext
from flowckpt.engine.run.lease import explain_failure, give_back, register_live, require_run, stop_when_lost
from flowckpt.engine.run.notify import (
    EVENTS,
    EventSink,
    Listener,
    LogListener,
    Notifier,
    event_stream,
    events,
    make_emitter,
    redact_error,
)
from flowckpt.engine.run.recorder import Recorder, Undo
from flowckpt.engine.run.resumption import (
    PACKAGES,
    Resumption,
    accept_import,
    add_decisions,
    check_workflow_name,
    count_crashes,
    crash_loop_error,
    list_begun,
    note_runners,
    read_resumption,
    read_started_steps,
    trim_history,
)
from flowckpt.engine.session.drive import Drive, final_event
from flowckpt.engine.values.failures import read_failure
from flowckpt.engine.values.inputs import BoundInputs, refuse_in_labels, refuse_other_inputs
from flowckpt.engine.values.options import IfExists, RunOptions, Saving
from flowckpt.engine.values.result import StepCounts, WorkflowResult
from flowckpt.engine.values.superseded import RetryBudget, Superseded
from flowckpt.engine.values.target import describe_target
from flowckpt.engine.values.waits import SHORT_SECONDS, Waits
from flowckpt.errors import (
    FlowckptError,
    NoAsyncioError,
    RunCancelledError,
    RunExistsError,
    RunMovedOnError,
    RunNotCompletedError,
    SecretMissingError,
    UnknownExecutorError,
)
from flowckpt.execution.claims import ClaimChecker
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.errors import NO_SECRETS
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner, WorldSources
from flowckpt.stores.base import Ability, Lease, StoreBase

if TYPE_CHECKING:
    from flowckpt.engine.session import outbox
    from flowckpt.engine.undo.compensate import UndoAttempt
    from flowckpt.events import Event
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution.executors.base import ExecutorSpec


# The executors of an attempt: those given now, those of the engine, and those recorded when the run was started.


RECORDED = "executors"
"""Metadata key: the executor descriptions that the run was started with, by name."""

_REQUEST_SECONDS = 30.0
"""How long a resume waits for the store to tell what it was asked for."""
_HARMLESS = ("engine", "thread", "process")


def choose_executors(
    metadata: dict[str, Any], own: Mapping[str, ExecutorSpec], given: Mapping[str, str]
) -> dict[str, ExecutorSpec]:
    """Return the executors of an attempt, and note the given descriptions in the metadata.

    A record may come from anywhere, and an executor sees the steps' arguments and supplies their results. So an address
    in a record is never used: it is only reported, and must be given again.

    Args:
        metadata: the run's metadata; changed.
        own: the engine's executors.
        given: descriptions given for this attempt.

    Raises:
        UnknownExecutorError: the run was started with an executor on another machine, and none is given now.
    """
    recorded = {str(name): str(each) for name, each in dict(metadata.get(RECORDED, {})).items()}
    for name, description in recorded.items():
        if name not in own and name not in given and not _is_harmless(description):
            option = description if name == "default" else f"{name}={description}"
            here = "engine" if name == "default" else f"{name}=process"
            raise UnknownExecutorError(
                f"the run was started with executor {name!r} as {description!r}; "
                "a recorded address is not used unless given again",
                executor=name,
                remedy=f"Give it again with --executor {option}, or choose another one with --executor {here}.",
            )
    if written := {**recorded, **given}:
        metadata[RECORDED] = written
    return {**recorded, **own, **given}


def _is_harmless(description: str) -> bool:
    """Return whether the steps run on this machine only, in processes that the run itself starts."""
    kind, _, rest = description.partition(":")
    return kind in _HARMLESS or (kind == "dask" and rest.partition(":")[0] == "local")


_log = logging.getLogger("flowckpt")


@attrs.frozen(eq=False, repr=False)
class Ports:
    """The parts that all sessions of an engine share.

    Attributes:
        store: where checkpoints go.
        world: the time, ids and random numbers.
        verifier: checks the steps' claims; None for one based on the directory where the run was started.
        saving: when to save apart from explicit checkpoints, and what to keep.
        executors: the executors outside this process, by name.
        listeners: called with every event.
        drive: drives a run that another run starts.
    """

    store: StoreBase
    world: WorldSources
    verifier: EvidenceVerifier | None
    saving: Saving
    executors: Mapping[str, ExecutorSpec]
    listeners: Sequence[Listener]
    drive: outbox.Drive


@lazy_define(eq=False, repr=False)
class Session:
    """One start or one resume: it takes the run's lease, drives the run, and always releases the lease.

    Args:
        ports: the parts shared with the engine's other sessions.
        workflow: the workflow to run.
        workflow_id: the run.
        options: the options of the run.
        bound: the checked inputs of a start; None for a resume.
        inputs: the inputs as given; a resume may have none.
        if_exists: what a start does if the run exists.
        is_cancel: whether the session only undoes the run's effects and ends the run as cancelled.

    Attributes:
        interrupts: the signals; entered by the process that owns the loop.
        ends_with_generation: whether the run completes instead of continuing as another generation; for a check.
    """

    _ports: Ports
    _workflow: Workflow[Any, Any]
    _workflow_id: str
    _options: RunOptions
    inputs: Mapping[str, Any] = attrs.field(kw_only=True)
    bound: BoundInputs | None = attrs.field(kw_only=True, default=None)
    if_exists: IfExists = attrs.field(kw_only=True, default=IfExists.FAIL)
    is_cancel: bool = attrs.field(kw_only=True, default=False)
    interrupts: Interrupts = attrs.field(init=False, factory=Interrupts)
    ends_with_generation: bool = attrs.field(init=False, default=False)
    _has_acted: bool = attrs.field(init=False, default=False)
    _stays: bool = attrs.field(init=False, default=False)
    _lease: Lease | None = attrs.field(init=False, default=None)
    _current: Drive | RecordedEnd | None = attrs.field(init=False, default=None)
    _secrets: KnownSecrets = attrs.field(init=False, default=NO_SECRETS)

    def __attrs_post_init__(self) -> None:
        if self.bound is not None:
            refuse_in_labels(self.bound, self._workflow_id, self._options.tags)

    @property
    def store(self) -> StoreBase:
        """The store of the checkpoints."""
        return self._ports.store

    @property
    def continue_on_save_error(self) -> bool:
        """Whether the run continues when a checkpoint cannot be saved."""
        return self._ports.saving.continue_on_save_error

    def make_cancel(self) -> Session:
        """Return a session that only undoes the steps of the run and ends the run as cancelled."""
        inputs = self.inputs if self.bound is None else {**self.inputs, **self.bound.secrets}
        return Session(self._ports, self._workflow, self._workflow_id, RunOptions(), inputs=inputs, is_cancel=True)

    async def run_all(self, on_event: Callable[[Event], None] | None = None, *, folds_restored: bool) -> WorkflowResult:
        """Drive the run and the runs that it starts to their ends; see `result`."""
        self._stays = True
        try:
            result = await self.result(on_event, folds_restored=folds_restored)
        except BaseException:
            if self._has_acted:
                await session.outbox.loop_runs().stop()
            raise
        if self._has_acted:
            self.interrupts.watch(asyncio.current_task())
            await session.outbox.loop_runs().join(self.interrupts)
        return result

    async def join(self) -> WorkflowResult:
        """Drive a run that another run started; stay as long as another run may end its waits."""
        self._stays = self._has_acted = True
        session.outbox.loop_runs().enter(self)
        return await self.result()

    async def result(
        self, on_event: Callable[[Event], None] | None = None, *, folds_restored: bool = False
    ) -> WorkflowResult:
        """Drive the run to its end and return how it ended.

        Args:
            on_event: called with every event.
            folds_restored: whether consecutive restored steps share one event.

        Raises:
            NoAsyncioError: no asyncio loop runs here.
        """
        _check_loop("engine.run")
        emit = self._make_sink(on_event)
        wants_each = any(not getattr(each, "folds_restored", False) for each in self._ports.listeners)
        # a log has one line for consecutive restored steps
        folds = (folds_restored or on_event is None) and not wants_each
        result = await self._drive_run(emit, folds_restored=folds)
        assert result is not None
        is_removed = await self._apply_retention(result)
        return attrs.evolve(result, is_removed=True) if is_removed else result

    async def events(self) -> AsyncGenerator[Event, None]:
        """Drive the run to its end, yielding what happens.

        Raises:
            NoAsyncioError: no asyncio loop runs here.
        """
        _check_loop("engine.execute")
        async with aclosing(event_stream(self._run)) as stream:
            async for event in stream:
                yield event

    async def _run(self, emit: EventSink) -> None:
        await self._apply_retention(await self._drive_run(self._make_sink(emit)))

    async def _drive_run(self, emit: EventSink | None, *, folds_restored: bool = False) -> WorkflowResult | None:
        """Take the run's lease, drive its generations, and return how the last one ended."""
        async with self._hold_run() as drive:
            await drive.run(emit, folds_restored=folds_restored)
            ended: list[tuple[StepCounts, float]] = []
            while isinstance(drive, Drive) and drive.next_inputs is not None and drive.ended is not None:
                ended.append(drive.ended)
                drive = self._current = await self._next_generation(drive, drive.next_inputs)  # noqa: PLW2901
                await drive.run(emit, folds_restored=folds_restored)
        result = drive.result
        if result is None or not ended:
            return result
        counts, durations = zip(*ended, (result.steps, result.duration_ms), strict=True)
        steps = StepCounts(*map(sum, zip(*map(attrs.astuple, counts), strict=True)))
        return attrs.evolve(result, steps=steps, duration_ms=round(sum(durations), 3))

    def _make_sink(self, consumer: Callable[[Event], Any] | None) -> EventSink | None:
        """Return a function that redacts and emits events; None without a listener."""
        listeners: list[Listener] = [*self._ports.listeners]
        if _is_log_read():
            listeners.append(LogListener())
        if not listeners and consumer is None:
            return None
        return make_emitter(listeners, consumer, lambda: self._secrets)

    @asynccontextmanager
    async def _hold_run(self) -> AsyncGenerator[Drive | RecordedEnd, None]:
        """Hold the run's lease during the block, and release it however the block ends."""
        store, workflow_id = self._ports.store, self._workflow_id
        if self.if_exists is IfExists.RETURN:
            latest = await store.load_latest(workflow_id)
            if latest is not None and latest.status is not Status.RUNNING:  # for a running one, the lease decides
                yield self._make_recorded_end(latest)
                return
        lease = self._lease = await finish_despite_cancel(store.acquire(workflow_id, take_over=self._options.steal))
        try:
            for notice in lease.notices:
                _log.warning("run %s: %s", workflow_id, notice)
            stop_when_lost(store, workflow_id, self.interrupts, continue_on_save_error=self.continue_on_save_error)
            with register_live(store, workflow_id, self.interrupts):
                self._current = await explain_failure(store, workflow_id, self._begin(lease))
                yield self._current
        except FlowckptError as error:
            redact_error(error, self._secrets)
            raise
        finally:
            if self._has_acted:
                session.outbox.loop_runs().leave(self)
            drive = self._current
            is_away = isinstance(drive, Drive) and drive.context.recorder.checkpointer.is_store_away
            await finish_despite_cancel(give_back(store, self._lease, is_away=is_away), is_last=True)

    async def _apply_retention(self, result: WorkflowResult | None) -> bool:
        """Apply the retention to a completed run, and return whether it was removed."""
        retention = self._ports.saving.retention
        if retention is not None and result is not None and result.status is Status.COMPLETED and result.is_saved:
            removal = maintenance.evict.apply_to_completed(self._ports.store, self._workflow_id, retention)
            return await finish_despite_cancel(removal, is_last=True)
        return False

    async def _begin(self, lease: Lease) -> Drive | RecordedEnd:
        """Start or resume the run; if a run to be started already exists, follow `if_exists`."""
        if self.bound is None:
            return await self._resume(lease)
        if lease.latest is None:
            return self._start(lease, self.bound)
        if self.if_exists is IfExists.FAIL:
            raise RunExistsError(lease.workflow_id)
        if self.if_exists is IfExists.RETURN:
            return self._make_recorded_end(lease.latest)
        self._refuse_another(lease.latest)
        self.bound = None
        return await self._resume(lease)

    def _refuse_another(self, latest: CheckpointData) -> None:
        """Refuse a start if the run with this id belongs to another workflow or has other inputs."""
        check_workflow_name(self._workflow, self._workflow_id, latest)
        assert self.bound is not None
        if generation.number_of(latest.metadata) > 1 and self.bound.hash == generation.first_inputs_of(
            latest.metadata, latest.inputs_hash
        ):
            self.inputs = self.bound.secrets  # the recorded inputs are those of the present generation
            return
        refuse_other_inputs(self._workflow, self.bound, latest)

    def _make_recorded_end(self, latest: CheckpointData) -> RecordedEnd:
        self._refuse_another(latest)
        return RecordedEnd(self._workflow, self._workflow_id, latest)

    def _start(self, lease: Lease, bound: BoundInputs) -> Drive:
        options, workflow = self._options, self._workflow
        metadata: dict[str, Any] = {
            "target": dict(describe_target(workflow) if options.target is None else options.target),
            "tags": dict(options.tags),
            "defaulted": list(bound.defaulted),
            "base_path": options.base_path or str(Path.cwd()),
            BIRTH: ids.new_token(16),
        }
        if options.given_saving:
            metadata["saving"] = options.given_saving
        if options.given_limits:
            metadata[LIMITS] = options.given_limits
        claims = options.make_checker(self._ports.verifier, metadata)
        judge = Judge(ResumePolicy(takes_cached=not options.no_cache), secrets=bound.known_secrets())
        return self._make_drive(lease, _AttemptStart(bound, History(), metadata, claims, judge))

    async def _next_generation(self, drive: Drive, bound: BoundInputs) -> Drive:
        """Return the drive that starts the next generation of the run."""
        store, workflow_id, options = self._ports.store, self._workflow_id, self._options
        recorder = drive.context.recorder
        saves = recorder.checkpointer
        keep: int | None = generation.KEPT
        if self._ports.saving.retention is not None:
            keep = self._ports.saving.retention.keep_generations
        now, results = self._ports.world.clock.now(), saves.history.results
        info = None if generation.KEY in saves.metadata else await store.describe_run(workflow_id)
        listed = generation.generations_of(
            saves.metadata,
            inputs_hash=saves.run.inputs_hash,
            started_at=now if info is None else info.started_at,
            attempt=saves.attempt,
            steps=len(results),
        )
        taken = await self._list_taken_messages({**saves.metadata, TAKEN: sorted(recorder.waits.taken)}, results)
        replies = [
            (each.signal, codec.dumps(plain_tree(each.held_output, "output")))
            for each in results
            if each.step_type == "reply" and each.success
        ]
        token = "" if self._lease is None else self._lease.token
        lease = self._lease = await finish_despite_cancel(store.begin_generation(workflow_id, token=token))
        stop_when_lost(store, workflow_id, self.interrupts, continue_on_save_error=self.continue_on_save_error)
        metadata = generation.next_metadata(
            saves.metadata,
            attrs.evolve(listed[-1], ended_at=now),
            attempt=lease.attempt,
            now=now,
            taken=taken,
            replies=replies,
            keep=keep,
            results=results,
        )
        metadata["defaulted"] = list(bound.defaulted)
        claims = options.make_checker(self._ports.verifier, metadata)
        judge = Judge(ResumePolicy(takes_cached=not options.no_cache), secrets=bound.known_secrets())
        self.inputs, self.bound = {}, bound
        origin = _AttemptStart(bound, History(), metadata, claims, judge, waits=Waits.of(metadata))
        following = self._make_drive(lease, origin)
        following.former = drive.ended
        former, context = drive.context, following.context  # a generation may end before it first looks for requests
        context.requests, context.look_at_ns = former.requests, former.look_at_ns
        return following

    async def _list_taken_messages(self, metadata: Mapping[str, Any], results: Sequence[StepResult]) -> list[str]:
        """Return the ids of messages that no later generation may consume, and that may still be in the store."""
        taken = generation.list_taken(metadata, results)
        own = {each.signal for each in results if each.signal}
        old = [each for each in taken if each not in own][: -generation.MOST_TAKEN]
        if old and self._ports.store.has(Ability.SIGNALS):
            left = {each.signal_id for each in await self._ports.store.signals(self._workflow_id)}
            return [each for each in taken if each not in old or each in left]
        return taken

    async def _resume(self, lease: Lease) -> Drive | RecordedEnd:
        latest = require_run(self._workflow_id, lease.latest)
        is_ended = self._has_acted and latest.status is not Status.SUSPENDED  # by others, since another run started it
        if is_ended or self._options.if_attempt not in (None, latest.attempt):
            raise RunMovedOnError(self._workflow_id, expected=self._options.if_attempt or 0, attempt=latest.attempt)
        started = await read_started_steps(self._ports.store, self._workflow_id, latest)
        crash_count = await self._check_crash_count(lease, latest, started)
        claims = self._options.make_checker(self._ports.verifier, latest.metadata)
        if self.is_cancel or UNFINISHED in latest.metadata:
            latest, _ = await note_runners(self._ports.store, self._workflow_id, latest, is_stolen=self._options.steal)
            return self._start_undoing(lease, latest, claims, crash_count, started)
        read = partial(
            read_resumption,
            *(self._workflow, self._workflow_id, latest, started),
            inputs=self.inputs,
            options=self._options,
            claims=claims,
            store=self._ports.store,
        )
        resumption = await read()
        if resumption.final is not None:
            raise resumption.final
        judge = resumption.judge
        self._secrets = judge.secrets
        # A policy may stop at a stale step. That step may come after one that runs again, and nothing may run before
        # the stop: so search first if results are reused by inputs, or if an effect must not be repeated.
        is_completed, mode = latest.status is Status.COMPLETED, judge.policy.reuse
        if is_completed or mode is ReuseMode.INPUTS or resumption.is_guarded or judge.policy.settled:
            plan = await dry.planner.make_plan(
                self._workflow, self._workflow_id, resumption, claims, self._ports.store, self._ports.world.clock
            )
            undo.plan_resume.refuse_needless(plan, resumption)
            if is_completed and plan.is_nothing_to_do and (not plan.ends_at or resumption.bound.missing):
                return RecordedEnd(self._workflow, self._workflow_id, latest)
            if is_completed and latest.metadata.get(IMPORTED) is True:  # the run continues after its import
                resumption = await read(drops_answers=True)
                judge = resumption.judge
            undo.plan_resume.refuse_stop(plan)
        waits = Waits.of(latest.metadata)
        dropped = (result for result, _ in resumption.cut.values())
        waits.drop_stale(dropped, takes_later=mode is ReuseMode.PREFIX)
        origin = _AttemptStart(
            resumption.bound,
            resumption.history,
            self._make_metadata(resumption),
            claims,
            judge,
            latest,
            waits,
            keep_partial(latest.partial, judge.policy),
            {*resumption.in_doubt},
            resumption.superseded,
            crash_count,
            reusable=resumption.spare,
        )
        drive = self._make_drive(lease, origin)
        if await self._has_requests():
            await drive.context.poll_requests(patience=_REQUEST_SECONDS)
        return drive

    async def _has_requests(self) -> bool:
        """Return whether somebody has asked the run for something while no process ran it."""
        store = self._ports.store
        if not store.has(Ability.SIGNALS):
            return False
        try:
            signals = await store.signals(self._workflow_id)
        except FlowckptError:  # the run looks again when its first step has ended
            return False
        return any(each.kind in REQUESTS for each in signals)

    def _make_metadata(self, resumption: Resumption) -> dict[str, Any]:
        """Return the metadata of a resume's first checkpoint."""
        latest, policy = resumption.latest, resumption.judge.policy
        metadata = accept_import(latest.metadata) if IMPORTED in latest.metadata else latest.metadata
        metadata = add_decisions(metadata, policy, self._ports.world.clock.now()) if policy.settled else metadata
        metadata = self._options.add_to_metadata(resumption.superseded.add_to_metadata(metadata))
        metadata.pop(STOPPED, None)
        metadata.pop(FAILED_AT, None)
        if latest.status is Status.CANCELLED or latest.reason is Reason.MANUAL:
            metadata[ENDED] = {"attempt": latest.attempt, "at": encode_time(latest.saved_at)}
        if generation.KEY in metadata:
            metadata = generation.note_resume(metadata, len(latest.step_results), self._ports.world.clock.now())
        return metadata

    def _start_undoing(
        self,
        lease: Lease,
        latest: CheckpointData,
        claims: ClaimChecker,
        crash_count: CrashCount,
        started: Sequence[str],
    ) -> Drive:
        options = self._options
        end = undo.compensate.read_unfinished(latest.metadata)
        if self.is_cancel:
            end = undo.compensate.check_cancel(self._workflow_id, latest)
        assert end is not None
        undoing = undo.compensate.read_undoing(
            self._workflow,
            self._workflow_id,
            latest,
            inputs=self.inputs,
            end=end,
            options=options,
            is_cancel=self.is_cancel,
        )
        # A cancel decides how the run ends before it undoes anything; if nothing more can be undone, the run has ended.
        is_new = self.is_cancel or not options.rolls_back
        metadata = undo.compensate.drop_unfinished(latest.metadata) if is_new else latest.metadata
        if self.is_cancel:
            metadata = undo.compensate.note_failed_step(metadata, latest)
        metadata = crash_count.add_to_metadata(
            options.add_to_metadata(metadata), results=len(latest.step_results), partial=latest.partial
        )
        origin = _AttemptStart(
            undoing.bound,
            trim_history(as_view(latest.step_results), ()),
            metadata,
            claims,
            Judge(ResumePolicy(), secrets=undoing.bound.known_secrets()),
            latest,
            Waits.of(latest.metadata),
            dict(latest.partial),
            {*list_in_flight(latest, started)},  # a cancel that dies must not lose them
            superseded=Superseded(latest.metadata),
        )
        return self._make_drive(lease, origin, undoing)

    async def _check_crash_count(self, lease: Lease, latest: CheckpointData, started: Sequence[str]) -> CrashCount:
        """Return how often the run crashed at its last crash site; refuse a run that crashed too often.

        `--force` and `--steal` reset the count.
        """
        options = self._options
        if options.force or options.steal:
            return CrashCount()
        crash_count = await count_crashes(self._ports.store, lease, latest, started)
        most = limit_of(latest.metadata, options.max_crashes, self._ports.saving.max_crashes)
        if crash_count.is_crash_loop(most) and not self.is_cancel:  # a cancel may always proceed
            error = crash_loop_error(lease.workflow_id, crash_count)
            if (emit := self._make_sink(None)) is not None:
                name, crashes = self._workflow.name, crash_count.count
                facts = name, lease.attempt, crash_count.path, crashes, error.message
                await emit(events.CrashLoopDetected(lease.workflow_id, *facts))
            raise error
        return crash_count

    def _make_drive(self, lease: Lease, origin: _AttemptStart, undoing: UndoAttempt | None = None) -> Drive:
        workflow, bound, options = self._workflow, origin.bound, self._options
        if bound.missing:
            raise SecretMissingError(bound.missing, workflow_id=self._workflow_id)
        self._secrets = origin.judge.secrets
        refresh()
        code = code_of(workflow.function)  # reads the source of the modules now, before an edit
        versions, recorded = versions_of(code.packages) if code.packages else {}, origin.metadata.get(PACKAGES, {})
        if versions != (recorded[max(recorded, key=int)] if recorded else {}):
            packages = {**recorded, str(lease.attempt): versions}
            origin = attrs.evolve(origin, metadata={**origin.metadata, PACKAGES: packages})
        checkpointer = self._make_checkpointer(lease, origin, code.fingerprint)
        replay = Replay(
            workflow.make_generator(bound.values(workflow)),
            origin.history.results,
            workflow.name,
            drops_what_changed=origin.judge.policy.is_forced,
            spare=origin.reusable,
            waiting=list_begun(origin.metadata, origin.history.results, origin.in_doubt, origin.superseded),
            is_repeated=self.bound is None,
        )
        executors: Mapping[str, ExecutorSpec] = {}
        is_wanted = options.executors or self._ports.executors or origin.metadata.get(RECORDED)
        if is_wanted and undoing is None:  # an undo always runs in this process
            executors = choose_executors(origin.metadata, self._ports.executors, options.executors)
        limit = origin.metadata.get(LIMITS, {}).get("retry_budget", self._ports.saving.retry_budget)
        world = self._ports.world
        notifier = Notifier()
        recorder = Recorder(
            checkpointer,
            notifier,
            origin.judge,
            replay.aside,
            origin.waits,
            Undo(options.rolls_back),
            origin.superseded,
            origin.in_doubt,
            origin.latest,
            origin.crash_count,
            self._ports.store.note_started,
        )
        context = RunContext(
            world,
            world.clock,
            self.interrupts,
            recorder,
            notifier,
            origin.judge,
            origin.claims,
            StepRunner(
                self.interrupts, origin.claims, origin.judge.secrets, world, executors, partial(self._act, recorder)
            ),
            origin.waits,
            RetryBudget(
                limit, checkpointer, SHORT_SECONDS if options.stay is None else min(options.stay, SHORT_SECONDS)
            ),
            world.clock.elapsed_ns() + LOOK_NS,
            self._rest,
        )
        return Drive(workflow, replay, context, undoing, options.stay, self.ends_with_generation)

    async def _act(self, recorder: Recorder, action: Any, call: StepCall) -> Any:
        """Start another run, send a signal, or reply to a signal."""
        if not self._has_acted:
            self._has_acted = True
            session.outbox.loop_runs().enter(self)
        ports = self._ports
        return await session.outbox.Outbox(ports.store, ports.world.clock, ports.drive, recorder).act(action, call)

    async def _rest(self, can_end: Callable[[], Awaitable[bool]]) -> bool:
        """Wait while another run of this loop may still end a wait; return whether a wait can end."""
        return self._has_acted and self._stays and await session.outbox.loop_runs().rest(self, can_end)

    def _make_checkpointer(self, lease: Lease, origin: _AttemptStart, code: str) -> Checkpointer:
        bound, run_id, saving = origin.bound, lease.workflow_id, self._ports.saving
        facts = RunFacts(run_id, self._workflow.name, bound.hash, bound.recorded, code)
        policy = SavePolicy(saving.trigger_of(origin.metadata.get("saving", {})), saving.continue_on_save_error)
        if saving.retention is not None:
            is_new = lease.latest is None
            policy.evictor = maintenance.evict.Evictor(
                self._ports.store, saving.retention, self._ports.world.clock, run_id, origin.history, is_new=is_new
            )
        return Checkpointer(
            self._ports.store,
            self._ports.world.clock,
            facts,
            origin.metadata,
            lease.attempt,
            lease.last_sequence,
            origin.history,
            policy,
            partial=origin.partial,
            last_saved=None if origin.latest is None else origin.latest.checkpoint_id,
            secrets=origin.judge.secrets,
            searched=len(origin.history.results),
        )


@attrs.frozen(eq=False, repr=False)
class _AttemptStart:
    """The start of an attempt: its inputs alone, or the newest checkpoint of its run.

    Attributes:
        bound: the inputs.
        history: the recorded results.
        metadata: the metadata of the first checkpoint.
        claims: checks the steps' claims.
        judge: decides whether recorded results are reused.
        latest: the newest checkpoint; None for a new run.
        waits: the pending waits.
        partial: the saved states of steps that have not succeeded, by path.
        in_doubt: the paths of at-most-once steps with a recorded start and no recorded end.
        superseded: results that no longer count, of steps that must check them before they run again.
        crash_count: how often the run crashed at its last crash site; None if the metadata already has it.
        reusable: results that steps may reuse when they are yielded, by path.
    """

    bound: BoundInputs
    history: History
    metadata: dict[str, Any]
    claims: ClaimChecker
    judge: Judge
    latest: CheckpointData | None = None
    waits: Waits = attrs.field(factory=Waits)
    partial: dict[str, PartialState] = attrs.field(factory=dict)
    in_doubt: set[str] = attrs.field(factory=set)
    superseded: Superseded = attrs.field(factory=Superseded)
    crash_count: CrashCount | None = None
    reusable: Mapping[str, StepResult] | None = None


def _is_log_read() -> bool:
    """Return whether a log handler takes the records of events."""
    logger: logging.Logger | None = EVENTS
    if not EVENTS.isEnabledFor(logging.WARNING):
        return False
    while logger is not None:
        for handler in logger.handlers:
            if not isinstance(handler, logging.NullHandler) and getattr(handler, "hears_events", True):
                return True
        logger = logger.parent if logger.propagate else None
    return False


def _check_loop(door: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoAsyncioError(door) from None


# A run whose end is already recorded.


class RecordedEnd:
    """The resume of a completed run, or a start that returns an earlier run: nothing is run or saved.

    Attributes:
        result: how the run ended, or its present state if it has not ended.
    """

    def __init__(self, workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
        is_completed = latest.status is Status.COMPLETED
        status = Status.CRASHED if latest.status is Status.RUNNING else latest.status  # it has no owner
        tree = plain_tree(latest.held_output, "output") if is_completed else None
        results = latest.step_results
        self.result = WorkflowResult(
            workflow_id,
            workflow.name,
            status,
            codec.decode(tree, workflow.output_type, place="the workflow's output") if is_completed else None,
            latest.attempt,
            StepCounts(restored=len(results) if is_completed else 0),
            0.0,
            None if is_completed else _recorded_error(workflow_id, status, latest),
            failure=latest.error,
            waits=tuple(open_waits(latest.metadata, results)) if status is Status.SUSPENDED else (),
            last_saved=latest.checkpoint_id,
            figures=sum_figures(results),
            generation=generation.number_of(latest.metadata),
        )
        self._checkpoint_id, self._birth = latest.checkpoint_id, birth_of(latest.metadata)

    async def run(self, emit: EventSink | None = None, *, folds_restored: bool = False) -> None:
        """Emit the recorded end; for a completed run, first the event of its resume.

        Args:
            emit: takes the events.
            folds_restored: ignored, as nothing is restored.
        """
        if emit is None:
            return
        result = self.result
        if result.status is Status.COMPLETED:
            of_run = result.workflow_id, result.workflow_name, result.attempt, result.steps.restored
            await emit(events.WorkflowResumed(*of_run, self._checkpoint_id, self._birth))
        error = result.failure or StepError(type_name(RunNotCompletedError), str(result.error))
        await emit(final_event(result, "cancelled" if result.status is Status.CANCELLED else "", error))


def _recorded_error(workflow_id: str, status: Status, latest: CheckpointData) -> FlowckptError | None:
    """Return the error of a recorded run that has not completed; None if the run only waits."""
    if status is Status.SUSPENDED:
        return None
    if status is Status.CANCELLED:
        return RunCancelledError(workflow_id)
    error = latest.error
    if error is not None and error.path:
        return read_failure(error, latest.step_results)
    detail = "" if error is None else f"{error.type}: {error.message}"
    return RunNotCompletedError(workflow_id, status=status.value, detail=detail)
