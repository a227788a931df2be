"""The steps of one generator, the workflow's own or a child's: each is restored, or run and recorded.

    is the recorded result still valid? ── yes ──► the answer
           │ no                                        ▲
           └──► identify ──► settle ──► begin ──► try, and retry ──► record ──► save if due ──► emit

`Scope` first looks back: it restores results as far as the record goes, without any visible effect. Only then it runs
steps. If several generators run in parallel, all of them look back before any of them runs a step, so a refused resume
changes nothing. A step that has a checkpoint is reported as done only after it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.results import encode_arguments, take_output, take_plain_output
from flowckpt.core.codec.types import from_plain
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.identity.call import (
    CallIdentity,
    argument_values,
    digest_arguments,
    digest_positional,
    forget_changed_values,
    identify,
)
from flowckpt.core.identity.secrets import refuse_secret_names
from flowckpt.core.records import CheckpointData, StepError, StepResult
from flowckpt.core.records.result import UNREAD
from flowckpt.core.replay import Answer, Command, Crash, Enter, Execute, Finish, Replay, Restore, drive
from flowckpt.core.replay.replay import Glance
from flowckpt.engine import run as attempts
from flowckpt.engine import steps
from flowckpt.engine.rules.in_doubt import find_missed
from flowckpt.engine.rules.judge import PlainCall, find_plain_match, partial_reasons, plain_call
from flowckpt.engine.rules.paths import find_ended_wait
from flowckpt.engine.rules.reasons import NONDETERMINISM, OnStale, Reason, ReasonKind, ReuseMode
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events, evidence_event
from flowckpt.engine.run.recorder import StepEnd
from flowckpt.engine.values.failures import (
    FAN_OUT_FAILED,
    misfit_error,
    misfit_reason,
    read_answer,
    stale_step_error,
    step_failure,
)
from flowckpt.engine.values.superseded import marks_of
from flowckpt.errors import DecodingError, FlowckptError, StepFailedError
from flowckpt.execution.claims import CommittedClaims, is_open
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.errors import record_error
from flowckpt.execution.python import keep_arguments
from flowckpt.execution.runner import Outcome, output_annotation

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("flowckpt")


@attrs.define(eq=False, repr=False)
class Scope:
    """The live responder of one generator: it restores steps, runs them and records them.

    Attributes:
        context: the current attempt of the run.
        replay: the generator and its record.
        is_stale: whether a recorded result turned out to be no longer valid.
    """

    context: RunContext
    replay: Replay
    is_stale: bool = False
    _has_effects: bool = False
    _command: Command | None = None
    _task: asyncio.Task[Any] | None = None
    _entered: steps.members.Member | None = None

    async def look_back(self) -> bool:
        """Answer the generator from its record; return whether that brought it to its end.

        Raises:
            StaleStepError: a recorded result is no longer valid, and the policy is to stop.
            WorkflowChangedError: the generator yields another step than the recorded one.
        """
        await self._drive()
        return isinstance(self._command, Finish | Crash)

    async def run(self) -> Finish | Crash:
        """Drive the generator to its end and return how it ended.

        Raises:
            Suspended: a step waits, and no other step can run meanwhile; call this method again to continue there.
            BaseException: an error that ends the whole run, not only this generator.
        """
        self._has_effects = True
        await self._drive()
        end, run = self._command, self.context
        assert isinstance(end, Finish | Crash)
        if isinstance(end, Finish) and (doubts := run.recorder.list_doubts()):
            attempts.in_doubt.refuse_missed(run, find_missed(doubts, run.generators, self.replay.prefix))
        return end

    async def _drive(self) -> None:
        self._task = asyncio.current_task()
        self._command = await drive(self.replay, self, self._command, make_glance(self.context))

    async def restore(self, replay: Replay, command: Restore) -> Answer | Execute:
        """Answer with the recorded result; if it is no longer valid, have the step run again."""
        answer = await restore_step(self.context, command.step, command.result, is_spare=command.is_spare)
        if answer is not None:
            return answer
        self.is_stale = True
        return replay.rerun(command, keeps_rest=self._keeps_rest)

    def execute(self, replay: Replay, command: Execute) -> Awaitable[Answer | None]:
        """Run the step; while looking back, run it only if it is ephemeral."""
        run, task = self.context, self._task
        if (
            not self._has_effects
            or replay.is_handling
            or run.recorder.aside.dropped
            or run.waits.approved
            or run.interrupts.pending_signal
            or task is None
            or task.cancelling()
            or run.clock.elapsed_ns() >= run.look_at_ns
        ):
            return self._execute(command)
        self._command = command
        return run_step(run, command)

    async def _execute(self, command: Execute) -> Answer | None:
        """Handle requests, signals and pending changes of the record, then run the step."""
        run, task = self.context, self._task
        is_ephemeral = command.step.modifiers.is_ephemeral
        if not self._has_effects and not is_ephemeral:
            await run.refuse_doubt(command.step, command.path)
            return None
        if run.clock.elapsed_ns() >= run.look_at_ns:
            await run.poll_requests()
        if run.interrupts.pending_signal:
            run.interrupts.raise_pending(task)  # between steps: every finished step is recorded, and none is running
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # a cancel that waited for the end of the last step is delivered here
        if run.recorder.aside.dropped and not is_ephemeral:
            run.recorder.drop_stale()
        self._command = command  # if the step waits, it is executed again
        if self._has_effects:
            await self._record_failure()
        if self._has_effects and run.waits.approved:
            await steps.wait.check_approvals(run, command.path)
        return await run_step(run, command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Restore the steps of a composite, then run those without a result (unless still looking back)."""
        self._command = command
        member = self._entered
        if member is None:
            member = self._entered = steps.members.make_member(self.context, command)
            if await member.look_back():
                self._entered = None
                return member.answer
            if member.is_stale:
                self.is_stale = True
                replay.begin_again(keeps_rest=self._keeps_rest)
            else:
                replay.begin(command)
        if not self._has_effects:
            return None
        task = self._task
        self.context.interrupts.raise_pending(task)
        if task is not None and task.cancelling():
            await asyncio.sleep(0)
        await self._record_failure()
        checkpointer = self.context.recorder.checkpointer
        history, before = checkpointer.history, len(checkpointer.history.results)
        answer = await member.run()
        self._entered = None
        results = checkpointer.history.results
        # A failure in it may be tolerated, or handled by a child that has returned.
        if not all(each.success for each in (results[before:] if checkpointer.history is history else results)):
            replay.is_handling = True
        return answer

    async def _record_failure(self) -> None:
        """Make a handled failure durable before the generator's next step starts.

        Otherwise a crash could lose the failure but keep the effects of its handler, although the step succeeds next
        time.
        """
        if self.replay.is_handling:
            self.replay.is_handling = False
            await self.context.recorder.save_failures()

    @property
    def _keeps_rest(self) -> bool:
        return self.context.judge.policy.reuse is ReuseMode.INPUTS


def new_scope(run: RunContext, replay: Replay) -> Scope:
    """Return a driver for a generator; the attempt closes the generator when it ends."""
    run.generators.append(replay)
    return Scope(run, replay)


UNSURE = UNREAD
"""The glance cannot decide: the record has to be read."""


def make_glance(run: RunContext) -> Glance | None:
    """Return the fast path that restores recorded plain steps; None if every step needs the full check.

    It covers most loops: a plain function, the same arguments, an output without a type tag. `restore_step`
    gives the same answer in five times the time, which matters after a hundred thousand steps.
    """
    notifier, judge = run.notifier, run.judge
    if notifier.names_restored or judge.policy.from_path or judge.packages:
        return None
    secrets, reports, is_heard = judge.secrets, judge.reports, notifier.emit is not None
    # NOTE: a call is looked up once for each origin of plain results, and its arguments are compared as the bytes of
    # the line; measured by `python -m benchmarks --only users`, a further finished step.
    calls: dict[bytes, PlainCall] = {}

    def glance(step: Step[Any], result: StepResult) -> Any:  # noqa: PLR0912 - one branch for each doubt, and no call between
        held = vars(result)
        action, origin, path = step.action, held.get("origin"), held["path"]
        if path in reports or (is_heard and "/" in path):  # progress counts the members of each map
            return UNSURE
        if origin is None or type(action) is not PythonAction:
            info = find_plain_match(step, result, secrets)
            if info is None:
                return UNSURE
            value = take_plain_output(result)
        else:
            function, args = action.function, action.args
            call = calls.get(origin)
            if call is None or call[0] is not function or call[1] != len(args):
                call = calls[origin] = plain_call(action, origin)
            _, _, form, info = call
            if info is None or secrets.is_any or step.modifiers.version is not None:
                return UNSURE
            if action.kwargs:
                now = encode_arguments(digest_arguments(function, args, action.kwargs, secrets))
            else:
                for each in args:
                    if type(each) is not int:
                        now = encode_arguments(digest_positional(info.parameters, args, secrets))
                        break
                else:
                    try:
                        now = form % args
                    except ValueError:  # more digits than Python writes
                        return UNSURE
            if now != held["arguments_text"]:
                return UNSURE
            value = take_output(held)
        if not info.is_plain and value is not UNSURE:
            try:
                value = from_plain(value, output_annotation(step.action), "output")
            except DecodingError:
                return UNSURE
        if value is not UNSURE:
            if is_heard:
                notifier.folded += 1
                notifier.last_folded = path
            notifier.restored += 1
        return value

    return glance


async def is_still_valid(
    run: RunContext, step: Step[Any], result: StepResult, *, is_spare: bool, more: tuple[Reason, ...] = ()
) -> bool:
    """Return whether a recorded result is reused; if not, the step runs again.

    Raises:
        StaleStepError: the result is no longer valid, and the policy is to stop.
    """
    judge = run.judge
    if result.evidence is not None and result.success:
        report = judge.reports.get(result.path)
        if run.notifier.executed or is_open(report):  # steps have run since the check, or it had no answer
            report = judge.reports[result.path] = await run.claims.verify_again(step, result)
        if report is not None and report.outcome != "no_evidence" and run.notifier.emit is not None:
            await run.notifier.emit(evidence_event(run.workflow_id, result.path, report, "resume"))
    is_first = not (is_spare or run.notifier.executed or run.recorder.aside.dropped)
    reasons = judge.reasons(step, result, is_after_rerun=is_spare, is_first=is_first, more=more)
    answer = judge.decide(step, result, reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step_error(run.workflow_id, result.path, reasons, repeats_effect=judge.repeats_effect(step, result))
    if NONDETERMINISM in reasons:
        text = "; ".join(judge.secrets.redact(str(each)) for each in reasons)
        _log.warning("run %s: step %s: %s", run.workflow_id, result.path, text)
    if answer is OnStale.REUSE:
        return step.modifiers.files is None or run.runner.files.register_restored(run.claims.verifier.base_path, result)
    return judge.proves_done(step, result)


async def note_restored(run: RunContext, step: Step[Any], result: StepResult, *, is_spare: bool) -> None:
    """Count a restored result, keep it and its undo, and emit that the step is restored."""
    run.notifier.restored += 1
    if is_spare:
        run.recorder.restore(result)
    if step.modifiers.rollback is not None and result.success and not step.action.modifies_members:
        run.recorder.undo.undoable[result.path] = keep_arguments(step)
    if run.notifier.emit is not None:
        fields = result.path, result.success, result.duration_ms, step.action.step_type
        await run.notifier.emit(events.StepRestored(run.workflow_id, *fields))


async def restore_step(run: RunContext, step: Step[Any], result: StepResult, *, is_spare: bool) -> Answer | None:
    """Restore a step's recorded result, and emit it; return what the generator gets, or None if the step runs again.

    Raises:
        StaleStepError: the result is no longer valid, and the policy is to stop.
        DecodingError: the result does not fit the present code, and the policy is to reuse it.
    """
    if not await is_still_valid(run, step, result, is_spare=is_spare):
        return None
    try:
        answer = read_answer(step, result)
    except DecodingError as error:
        if await is_still_valid(run, step, result, is_spare=is_spare, more=(misfit_reason(error),)):
            raise misfit_error(run.workflow_id, result.path, error) from error
        return None
    await note_restored(run, step, result, is_spare=is_spare)
    if result.success and result.evidence is not None and step.action.step_type == "approval":
        steps.wait.bind_again(run, step, result, answer[0])
    return answer


def changed_members_reason(new: int, gone: int) -> Reason:
    """Return the reason why the recorded end of a fan-out is stale: its members have changed.

    Args:
        new: how many members have no record.
        gone: how many recorded results have no member any more.
    """
    return Reason(ReasonKind.ARGUMENTS, f"the members have changed: {new} are new, {gone} are gone")


OTHER_END = Reason(ReasonKind.ARGUMENTS, "with the present min_success and tolerate, its members end it otherwise")


def has_other_end(
    step: Step[Any], result: StepResult, answers: Sequence[Answer | None], *, stopped: int, unended: int
) -> bool:
    """Return whether the unchanged members of a fan-out would end it otherwise than recorded.

    Args:
        step: the fan-out, with its present `min_success` and `tolerate`.
        result: its recorded end.
        answers: the answers of its members; None for a member without one.
        stopped: how many members a race has stopped.
        unended: how many members have not ended, because too many others had failed.
    """
    action: Any = step.action
    is_replayed = any(each.modifiers.is_ephemeral for each in (step, *getattr(action, "steps", ())))
    if is_replayed or (result.error is not None and result.error.type != FAN_OUT_FAILED):  # the items themselves failed
        return False
    failed = sum(answer is not None and answer[1] is not None for answer in answers) - stopped
    if stopped:
        return not action.completion.is_enough(len(answers) - stopped - failed, action.size)
    if unended:
        return not action.completion.cannot_succeed(failed, action.size)
    is_met: bool = action.completion.is_met(failed, len(answers))
    return is_met != result.success


_EPHEMERAL = CallIdentity()
_NO_FIGURES: Mapping[str, int | float] = {}


async def run_step(run: RunContext, command: Execute) -> Answer:
    """Run a step and record it; return what the generator gets: its output, or its failure.

    Raises:
        Suspended: the step waits.
        StepInDoubtError: it is unknown whether the step was done, and it must not be done twice.
        UnknownExecutorError: the step's executor does not exist, or cannot run the step.
        FencedError: the run was taken over by another owner.
        FlowckptError: the result cannot be saved.
        KeyboardInterrupt: a signal arrived while the step ran.
        asyncio.CancelledError: the run was cancelled while the step ran.
    """
    step, path = command.step, command.path
    action, modifiers, secrets = step.action, step.modifiers, run.judge.secrets
    if type(action) is not PythonAction and action.is_waiting:
        if secrets.is_any:
            refuse_secret_names(step, path, secrets)
        return await steps.wait.run_wait(run, command)
    identity = _EPHEMERAL if modifiers.is_ephemeral else identify(action, secrets, modifiers.version)
    if secrets.is_any:
        refuse_secret_names(step, path, secrets)  # also those registered by reading its arguments
    recorder, services, emit = run.recorder, run.services, run.notifier.emit
    saves = recorder.checkpointer
    run_id, place, generation = saves.run.workflow_id, command.location, run.generation
    call = StepCall(run_id, path, saves.attempt, 1, step, action, modifiers, identity, services, place, generation)
    if (
        modifiers.is_plain
        and type(action) is PythonAction
        and recorder.is_start_saved
        and not (run.runner.has_places or saves.partial or run.notifier.dropped_states or recorder.superseded)
    ):
        recorder.in_flight[path] = call
        if emit is not None:
            await emit(events.StepStarted(run_id, path, action.step_type))
        started_ns = _note_start(run, call)
        end = _make_end(run, call, await run.runner.make_try(call), started_ns)
    else:
        call, ended = await _prepare_and_try(run, call)
        if isinstance(ended, StepResult):
            return await _reuse(run, call, ended)
        end = ended
    if identity.holds_values:
        _forget_changed_values(run, call)
    if services.is_used:
        await _record_used(run, call, end)
    else:
        recorder.record(call, end)
        recorder.in_flight.pop(path, None)
    saving = recorder.step_save(call, end)
    saved = None if saving is None else await saving
    if emit is not None:
        await emit_end(run, call, end, saved)
    return (end.outcome.value, None) if end.failure is None else (None, _make_failure(run, path, end.failure))


async def _prepare_and_try(run: RunContext, call: StepCall) -> tuple[StepCall, StepEnd | StepResult]:
    """Prepare and run a step that is not plain, or is the first of its attempt.

    Returns:
        The call, with how it ended or with the earlier result that is reused instead.
    """
    step, path, recorder = call.step, call.path, run.recorder
    modifiers, saves = step.modifiers, recorder.checkpointer
    tries_when_lost, resolution, since = 1, None, None
    if modifiers.placement is not None or run.runner.has_places:
        tries_when_lost = await run.runner.check_place(step, path)
    if not modifiers.is_ephemeral:
        if modifiers.retry is not None and run.waits.all:
            call, since = steps.tries.continue_tries(run, call)
        if modifiers.is_at_most_once or path in recorder.superseded:
            resolution = await _resolve_doubt(run, call)
            if resolution is not None and resolution.reused is not None:
                return call, resolution.reused
        if not recorder.is_start_saved or modifiers.is_at_most_once or saves.partial or run.notifier.dropped_states:
            await _begin(run, call, resolution)
    if modifiers.cache_seconds is None or (end := await _take_cached(run, call)) is None:
        end = await _try(run, call, resolution, tries_when_lost, since)
    return call, end


def _forget_changed_values(run: RunContext, call: StepCall) -> None:
    """Do not record what the step changed in place, and warn: a resumed run does not change it again."""
    assert isinstance(call.action, PythonAction)
    for name in forget_changed_values(call.action, call.identity, run.secrets):
        run.runner.warn_once(
            call,
            f"changes {name!r} in place; a resumed run reuses its result without this change: return the value instead",
        )


async def _record_used(run: RunContext, call: StepCall, end: StepEnd) -> None:
    """Record a step with the figures and values that it passed to `current_step()`, then wait for its own events."""
    recorder, services, path = run.recorder, run.services, call.path
    figures, published = services.take(path)
    end.more = {**end.more, **_drop_empty(figures=figures, published=published)}
    recorder.record(call, end)
    try:  # the step is done, even if a listener is slow, disappears or fails
        await services.wait_for_reports(path)
    finally:
        recorder.in_flight.pop(path, None)
        services.forget(path)


def _drop_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields of a result that are not empty."""
    return {name: value for name, value in fields.items() if value}


def _make_failure(run: RunContext, path: str, recorded: StepError) -> StepFailedError:
    """Return the error to raise at the `yield`, as every replay raises it: without the step's exception as its cause."""
    failure = step_failure(path, recorded)
    _log.info("run %s: step %s failed with %s\n%s", run.workflow_id, path, recorded.type, failure.trace)
    return failure


async def _resolve_doubt(run: RunContext, call: StepCall) -> attempts.in_doubt.Resolution | None:
    """Resolve what an earlier call of the step left behind; return None if the step simply runs."""
    resolution = await attempts.in_doubt.resolve(run, call)
    if run.notifier.emit is not None and resolution.report is not None and resolution.report.verdicts:
        await run.notifier.emit(evidence_event(call.workflow_id, call.path, resolution.report, "in_doubt"))
    return None if resolution is attempts.in_doubt.RUN else resolution


async def _reuse(run: RunContext, call: StepCall, result: StepResult) -> Answer:
    """Restore the earlier result of a step, which is still valid."""
    step, fingerprint = call.step, call.identity.fingerprint
    if step.modifiers.rollback is not None and attempts.undo_steps.find_moved_argument(step, result, run.secrets):
        fingerprint = result.fingerprint  # the undo sees from it that a default may have changed
    try:
        answer = read_answer(step, result)
    except DecodingError as error:
        raise misfit_error(run.workflow_id, call.path, error) from error
    await note_restored(run, step, attrs.evolve(result, fingerprint=fingerprint), is_spare=True)
    return answer


async def _take_cached(run: RunContext, call: StepCall) -> StepEnd | None:
    """Take the result of an equal call from the cache; None if there is no valid one."""
    judge, path, clock = run.judge, call.path, run.clock
    if not judge.policy.takes_cached or judge.is_forced(path):
        return None
    started_at, started_ns = clock.now(), clock.elapsed_ns()
    cached = await run.cache.find(call.step, path, run.recorder.checkpointer.history.results)
    if cached is None:
        return None
    files = None if call.modifiers.files is None else run.runner.files
    if files is not None and not files.register_restored(run.claims.verifier.base_path, cached.result):
        return None
    run.waits.end(path)
    evidence = cached.result.evidence
    committed = None if evidence is None or cached.report is None else CommittedClaims(evidence, cached.report)
    outcome = Outcome(cached.value, cached.tree, committed=committed)
    duration_ms = (clock.elapsed_ns() - started_ns + 500) // 1000 / 1000
    values, _ = _encode_arguments(run, call)
    end = StepEnd(outcome, None, started_at, duration_ms)
    end.taken_from = cached.workflow_id
    end.more = _drop_empty(source=cached.source, published=cached.result.published, argument_values=values)
    return end


def _encode_arguments(run: RunContext, call: StepCall) -> tuple[Mapping[str, Any], Exception | None]:
    """Return the arguments of a call as JSON if the step records them, or the error if they cannot be recorded."""
    if call.modifiers.content != "arguments":
        return {}, None
    try:
        return argument_values(call.action, call.path, run.judge.secrets), None
    except Exception as error:
        return {}, error


async def _begin(run: RunContext, call: StepCall, resolution: attempts.in_doubt.Resolution | None) -> None:
    """Make durable what a crash during the step must not lose."""
    step, path, recorder = call.step, call.path, run.recorder
    if path in recorder.checkpointer.partial:
        drop_stale_state(run, step, path)
    if not recorder.is_start_saved:
        await recorder.save_start()
    if run.notifier.dropped_states:
        await run.notifier.emit_dropped_states()
    is_run_now = resolution is None or (resolution.outcome is None and resolution.undo is None)
    if step.modifiers.is_at_most_once and is_run_now and step.modifiers.files is None:
        await recorder.mark_in_doubt(call)


def _note_start(run: RunContext, call: StepCall) -> int:
    """Note the start of a step in the store, for diagnosis after a crash; return its time by `elapsed_ns`."""
    note_started, clock = run.recorder.note_started, run.clock
    if note_started is not None and not call.modifiers.is_ephemeral:
        secrets = run.judge.secrets
        note_started(call.workflow_id, secrets.redact(call.path) if secrets.is_any else call.path)
    call.since = clock.now()
    return clock.elapsed_ns()


def _make_end(run: RunContext, call: StepCall, outcome: Outcome, started_ns: int, tries: int = 1) -> StepEnd:
    """Return the end of a step: its outcome, duration, number of tries, and failure.

    A failure while the run is asked to stop may come from the stop: Ctrl-C also reaches the programs that a step has
    started. So the step has no end, and runs again; only a step that must not run twice keeps its failure.
    """
    if outcome.error is not None and outcome.is_started and not call.modifiers.is_at_most_once:
        run.interrupts.raise_pending(asyncio.current_task())
    assert call.since is not None
    end = StepEnd(outcome, None, call.since, (run.clock.elapsed_ns() - started_ns + 500) // 1000 / 1000)
    end.tries = tries
    if outcome.error is not None:
        end.failure = record_error(outcome.error, path=call.path, tries=tries, secrets=run.judge.secrets)
    return end


async def _try(
    run: RunContext,
    call: StepCall,
    resolution: attempts.in_doubt.Resolution | None = None,
    tries_when_lost: int = 1,
    since: datetime | None = None,
) -> StepEnd:
    """Emit that the step starts, run it with its retries, and return how it ended.

    Args:
        run: the current attempt of the run.
        call: the first try to make.
        resolution: how an earlier call of the step was resolved.
        tries_when_lost: how often the step may be tried if workers are lost.
        since: when the first try started, if the run was suspended between two tries.
    """
    path, action, modifiers = call.path, call.action, call.modifiers
    recorder, emit = run.recorder, run.notifier.emit
    recorder.in_flight[path] = call
    if emit is not None and (resolution is None or resolution.outcome is None):
        await emit(events.StepStarted(call.workflow_id, path, action.step_type))
    started_ns = _note_start(run, call)
    is_tried_once = modifiers.retry is None and not (modifiers.is_at_most_once and modifiers.files is not None)
    values, refusal = _encode_arguments(run, call)
    loop = None
    if refusal is not None:
        outcome = Outcome(error=refusal)
    elif (
        is_tried_once and resolution is None and tries_when_lost == 1 and (emit is None or action.step_type == "python")
    ):
        outcome = await run.runner.make_try(call)
    else:
        loop = steps.tries.RetryLoop(run, call, resolution or attempts.in_doubt.RUN, since)
        outcome = await loop.run()
        run.waits.end(path)
    end = _make_end(run, call, outcome, started_ns, 1 if loop is None else loop.tries)
    if loop is not None:
        end.is_adopted = loop.is_adopted
    if outcome.error is not None and modifiers.files is not None:
        run.runner.files.release(path)
    if not modifiers.is_plain and (modifiers.is_at_most_once or modifiers.on_rerun is not None or refusal is not None):
        is_not_undone = loop is not None and not loop.is_undone
        is_started = refusal is None if loop is None else loop.is_started
        end.marks = marks_of(modifiers, is_adopted=end.is_adopted, is_not_undone=is_not_undone, is_started=is_started)
    if action.is_saved and end.failure is None:  # a reply: the sender finds its signal in the record
        wait = find_ended_wait(recorder.checkpointer.history.results, action.arguments()["to"], path)
        if wait is not None:
            end.more = _drop_empty(signal=wait.signal)
    if values:
        end.more = {**end.more, "argument_values": values}
    return end


async def emit_end(run: RunContext, call: StepCall, end: StepEnd, saved: CheckpointData | FlowckptError | None) -> None:
    """Emit how a step ended, then how its save ended."""
    workflow_id, path, failure, emit = call.workflow_id, call.path, end.failure, run.notifier.emit
    figures = end.more.get("figures", _NO_FIGURES)
    assert emit is not None
    if end.outcome.committed is not None:
        await emit(evidence_event(workflow_id, path, end.outcome.committed.report, "now"))
    if failure is not None:
        error, message = failure.type, failure.message
        await emit(events.StepFailed(workflow_id, path, end.duration_ms, end.tries, error, message, figures))
    elif end.taken_from:
        step_type = call.action.step_type
        await emit(events.StepRestored(workflow_id, path, True, end.duration_ms, step_type, end.taken_from))
    elif end.is_adopted:
        settled = run.judge.policy.settled.get(path)
        await emit(events.StepAdopted(workflow_id, path, "" if settled is None else settled.sentence))
    else:
        is_ephemeral = call.modifiers.is_ephemeral
        await emit(events.StepCompleted(workflow_id, path, end.duration_ms, is_ephemeral, figures))
    if saved is not None:
        await run.recorder.emit_saved(saved)


def drop_stale_state(run: RunContext, step: Step[Any], path: str) -> None:
    """Drop the saved state of an unfinished step if its code or arguments changed and the policy is to run again.

    Raises:
        StaleStepError: the code or arguments changed, and the policy is to stop.
    """
    reasons = partial_reasons(step, run.recorder.checkpointer.partial[path], run.secrets)
    answer = run.judge.policy.decide(reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step_error(run.workflow_id, path, reasons)
    if answer is OnStale.RERUN:
        run.recorder.drop_state(path, "; ".join(map(str, reasons)))
