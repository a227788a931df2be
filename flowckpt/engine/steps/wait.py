"""One step that waits: for a time, a signal, an approval.

    reached: fix the deadline, capture the approved facts ──► has it ended? ── no ──► suspended until checked again
                                                               │ yes
                                                               └──► record ──► save ──► remove the message

The end of a wait is decided once: it is saved before anything uses it.

An approval is bound to the facts that it approves, and each later step checks that they are unchanged. A generator
cannot go back within an attempt. So if the facts have changed, no further step starts: the run is suspended, the
question is asked again, and a resume goes back to the approval.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec import fitting
from flowckpt.core.codec.fitting import describe_type
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.waits import ApprovalAction, SleepAction, WaitAction
from flowckpt.core.identity.call import CallIdentity, identify
from flowckpt.core.identity.secrets import refuse_secret_claims, refuse_secrets
from flowckpt.core.records import Reason, StepError, StepResult
from flowckpt.core.records.outputs import Approval
from flowckpt.core.records.wait import Signal, Wait, WaitKind
from flowckpt.core.replay import Execute
from flowckpt.engine.rules.judge import evidence_reasons
from flowckpt.engine.rules.paths import is_after
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.recorder import StepEnd
from flowckpt.engine.values.failures import step_failure
from flowckpt.engine.values.waits import StandingApproval, Suspended, approval_digests
from flowckpt.errors import ApprovalRejectedError, FlowckptError, StepFailedError, StepTimeoutError
from flowckpt.events import ApprovalVoided, SignalSetAside, StepCompleted, StepFailed, StepStarted
from flowckpt.evidence.claims import EvidencePack, EvidenceType, State
from flowckpt.evidence.report import Moment
from flowckpt.execution import claims as evidence
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.errors import record_error
from flowckpt.execution.runner import Outcome

if TYPE_CHECKING:
    from flowckpt.evidence.report import VerificationReport
    from flowckpt.execution.claims import CommittedClaims


_log = logging.getLogger(__name__)


async def run_wait(run: RunContext, command: Execute) -> tuple[Any, StepFailedError | None]:
    """Check whether a wait has ended, and record how; return what the generator gets.

    Raises:
        Suspended: the wait has not ended.
        FencedError: the run was taken over by another owner.
        FlowckptError: the end of the wait cannot be saved.
    """
    waiting = _Waiting(run, command)
    if command.path not in run.waits.started:
        run.waits.started.add(command.path)
        if run.notifier.emit is not None:
            await run.notifier.emit(StepStarted(run.workflow_id, command.path, command.step.action.step_type))
    await waiting.find_or_start()
    while waiting.outcome is None:
        await waiting.check()
    return await waiting.record()


@attrs.define(eq=False)
class _Waiting:
    context: RunContext
    command: Execute
    outcome: Outcome | None = None
    signal: Signal | None = None
    _wait: Wait | None = None
    _is_asked_before: bool = False

    @property
    def action(self) -> SleepAction | WaitAction | ApprovalAction:
        action: Any = self.command.step.action
        assert isinstance(action, SleepAction | WaitAction | ApprovalAction)
        return action

    @property
    def wait(self) -> Wait:
        assert self._wait is not None
        return self._wait

    async def find_or_start(self) -> None:
        """Find the wait as an earlier attempt recorded it, or start a new one."""
        action, path = self.action, self.command.path
        known = self.context.waits.get(path)
        arguments = identify(action, self.context.secrets).arguments
        data_type = describe_type(action.output_type) if isinstance(action, WaitAction) else None
        if known is not None and known.kind is action.kind and repr(dict(known.arguments)) == repr(arguments):
            self._wait = known if known.data_type == data_type else attrs.evolve(known, data_type=data_type)
            self._is_asked_before = bool(known.claims)
        else:
            now = self.context.clock.now()
            fields = path, action.kind, action.name, now, action.deadline(now)
            self._wait = Wait(*fields, arguments=arguments, data_type=data_type)
            if not isinstance(action, SleepAction) and action.ask is not None:
                self._put_question(action.ask)
            await self._ask()

    def _put_question(self, ask: Any) -> None:
        place = f"{self.command.path}: ask"
        try:
            tree = codec.encode(ask, Any, place=place)
            refuse_secrets(tree, self.context.secrets, place)
        except Exception as error:
            self.outcome = Outcome(error=error)
        else:
            self._wait = attrs.evolve(self.wait, ask=tree)

    async def _ask(self, voided: str = "") -> None:
        """Ask the question of an approval, for the facts as they are now."""
        action, path = self.action, self.command.path
        if not isinstance(action, ApprovalAction):
            return
        claims: Any = {}
        if action.claims:
            try:
                committed = await capture_facts(self.context, action, path)
            except Exception as error:
                self.outcome = Outcome(error=error)
                return
            if not committed.report.verified:
                self.outcome = Outcome(error=evidence.evidence_error(path, committed.report), committed=committed)
                return
            claims = committed.document["pack"]
        request = make_request_id(self.context, self.wait.request if voided else "")
        self._wait = attrs.evolve(self.wait, request=request, claims=claims, voided=voided)

    async def check(self) -> None:
        """Check whether the wait has ended.

        Raises:
            Suspended: the wait has not ended.
        """
        run, action, wait = self.context, self.action, self.wait
        signal = await run.inbox.find_message(wait)
        if signal is not None:
            run.inbox.take(signal)
            self.signal = signal
            if isinstance(action, ApprovalAction):
                await self._use_answer(action, signal)
            else:
                await self._deliver(signal)
        elif wait.is_due(run.clock.now()):
            self.outcome = self._end_at_deadline()
        elif self._is_asked_before and await self._ask_again_if_changed():
            self._is_asked_before = False
        else:
            if run.waits.get(wait.path) is not wait:
                run.waits.begin(wait)
                if run.waits.fan_outs and run.waits.is_worth_a_save(wait):  # else the suspension saves it at once
                    await run.recorder.checkpoint_wait()
            raise Suspended([wait.path])

    def _end_at_deadline(self) -> Outcome:
        """Return the outcome of a wait whose deadline has passed."""
        action, wait = self.action, self.wait
        if isinstance(action, SleepAction):
            return Outcome()
        if isinstance(action, WaitAction) and action.has_default:
            return self._output(action.default)
        assert wait.due_at is not None
        seconds = (wait.due_at - wait.since).total_seconds()
        remedy = f"Raise timeout= of .{action.step_type}(), or handle the error in the workflow."
        return Outcome(error=StepTimeoutError(wait.path, timeout_seconds=seconds, remedy=remedy))

    async def _deliver(self, signal: Signal) -> None:
        """Use a signal; if its data do not fit the type, set it aside, and the step waits for another one."""
        annotation, place = self.action.output_type, f"data of signal {signal.name!r}"
        try:
            value = fitting.fit_value(signal.data, annotation, place=place)
        except Exception as error:  # a user's type may raise anything
            await self._set_aside(signal, error.message if isinstance(error, FlowckptError) else str(error))
        else:
            self.outcome = self._output(value)

    async def _set_aside(self, signal: Signal, why: str) -> None:
        run, path = self.context, self.command.path
        text = f"the signal {signal.name!r}{f' by {signal.by}' if signal.by else ''} (id {signal.signal_id})"
        _log.warning("run %s: %s is set aside, and step %s waits for another one: %s", run.workflow_id, text, path, why)
        if run.notifier.emit is not None:
            event = SignalSetAside(run.workflow_id, path, signal.name, signal.by, signal.signal_id, why)
            await run.notifier.emit(event)
        run.waits.take(signal.signal_id)
        self.signal = None

    def _output(self, value: Any) -> Outcome:
        annotation = self.action.output_type
        try:
            place = f"{self.command.path}: output"
            tree = codec.encode(value, annotation, place=place)
            refuse_secrets(tree, self.context.secrets, place)
            return Outcome(codec.decode(tree, annotation), tree)
        except Exception as error:
            return Outcome(error=error)

    async def _use_answer(self, action: ApprovalAction, signal: Signal) -> None:
        """Use an answer if the approved facts are unchanged; otherwise ask again."""
        wait, path = self.wait, self.command.path
        is_approved, comment = bool(signal.data.get("approved")), str(signal.data.get("comment", ""))
        committed = None
        if is_approved and wait.claims:
            pack = EvidencePack.from_document(wait.claims)
            committed = await self.context.claims.commit(pack, path=path)
            if not committed.report.verified:
                await self._void(signal, committed.report)
                return
        if not is_approved and not action.returns_rejection:
            self.outcome = Outcome(error=ApprovalRejectedError(path, by=signal.by, comment=comment))
            return
        made = Approval(is_approved, signal.by, comment, signal.sent_at, approval_digests(wait))
        self.outcome = attrs.evolve(self._output(made), committed=committed)

    async def _void(self, signal: Signal, report: VerificationReport) -> None:
        run, path = self.context, self.command.path
        details = evidence.list_failures(report)
        if run.notifier.emit is not None:
            await run.notifier.emit(ApprovalVoided(run.workflow_id, path, signal.by, report.reason, details))
        run.waits.take(signal.signal_id)
        self.signal = None
        await self._ask(voided="; ".join(details) or report.reason)

    async def _ask_again_if_changed(self) -> bool:
        """Ask again if the facts have changed since the question, so that the present ones can be approved."""
        pack = EvidencePack.from_document(self.wait.claims)
        committed = await self.context.claims.commit(pack, path=self.command.path)
        if not any(each.is_against and each.can_tell for each in committed.report.verdicts):
            return False
        await self._ask(voided="; ".join(evidence.list_failures(committed.report)) or committed.report.reason)
        return True

    async def record(self) -> tuple[Any, StepFailedError | None]:
        """Record how the wait ended, make it durable, and emit it."""
        run, command, outcome, signal = self.context, self.command, self.outcome, self.signal
        assert outcome is not None
        wait, step, path = self.wait, command.step, command.path
        failure: StepError | None = (
            None if outcome.error is None else record_error(outcome.error, path=path, secrets=run.secrets)
        )
        await run.recorder.save_start()
        duration_ms = max(0.0, round((run.clock.now() - wait.since).total_seconds() * 1e3, 3))
        identity = CallIdentity(step.action.function_name, "", wait.arguments, step.modifiers.version)
        call = StepCall.first(
            run.workflow_id, path, run.number, step, identity, run.services, command.location, run.generation
        )
        end = StepEnd(outcome, failure, wait.since, duration_ms)
        if signal is not None and signal.signal_id:
            end.more = {"signal": signal.signal_id}
        run.recorder.record(call, end)
        run.waits.end(path)
        if failure is None and signal is not None and outcome.committed is not None:
            bind_later_steps(run, step, wait, outcome.committed.document, signal.by)
        run.waits.started.discard(path)
        saved = None
        if step.modifiers.has_checkpoint or not isinstance(self.action, SleepAction):
            saved = await run.recorder.checkpoint(Reason.STEP, step.modifiers.checkpoint_id or path)
            if signal is not None and not isinstance(saved, FlowckptError):
                # no other step can use an answer to this question
                is_question = isinstance(self.action, ApprovalAction)
                await run.inbox.remove(run.inbox.list_answers(wait) if is_question else [signal.signal_id])
        elif run.recorder.checkpointer.is_due():
            saved = await run.recorder.checkpoint(Reason.TRIGGER)
        if run.notifier.emit is not None:
            if failure is None:
                await run.notifier.emit(StepCompleted(run.workflow_id, path, duration_ms))
            else:
                event = StepFailed(run.workflow_id, path, duration_ms, 1, failure.type, failure.message)
                await run.notifier.emit(event)
            await run.recorder.emit_saved(saved)
        return (outcome.value, None) if failure is None else (None, step_failure(path, failure))


async def capture_facts(run: RunContext, action: ApprovalAction, path: str) -> CommittedClaims:
    """Capture the facts to approve, as they are now.

    Raises:
        EvidenceError: a claim holds a secret, or is malformed.
    """
    first = action.claims[0]
    pack = first if isinstance(first, EvidencePack) else EvidencePack(action.claims)
    if run.secrets.is_any:
        refuse_secret_claims(pack.to_document(), run.secrets, path)
    return await run.claims.commit(pack, path=path)


def make_request_id(run: RunContext, earlier: str) -> str:
    """Return the id of a question: unique in the run, because it has the attempt's number and a counter."""
    return f"{run.number}.{int(earlier.rpartition('.')[2] or 0) + 1}"


def bind_later_steps(run: RunContext, step: Step[Any], wait: Wait, document: Mapping[str, Any], by: str) -> None:
    """Make every later step check the approved facts."""
    action: Any = step.action
    pack = EvidencePack.from_document(document["pack"])
    run.waits.approved[wait.path] = StandingApproval(wait.path, action, pack, by, wait.since, wait.request)


def bind_again(run: RunContext, step: Step[Any], result: StepResult, approval: Any) -> None:
    """Make later steps check the facts of a restored approval, unless they changed and the policy is to continue."""
    path, action = result.path, step.action
    run.waits.end(path)  # the approved facts hold again, so no new question is needed
    if not isinstance(action, ApprovalAction) or not isinstance(approval, Approval) or result.started_at is None:
        return
    if not run.judge.evidence_reasons(result):
        pack = evidence.read_pack(result)
        run.waits.approved[path] = StandingApproval(path, action, pack, approval.by, result.started_at)


async def check_approvals(run: RunContext, path: str) -> None:
    """Check that the facts approved before a step are unchanged.

    Raises:
        Suspended: they have changed and the question was asked again: the step must not start.
    """
    for standing in [each for each in run.waits.approved.values() if is_after(path, each.path)]:
        if not standing.is_void:
            report = await _check_facts(run, standing)
            if not evidence_reasons(report):
                continue
            if not standing.is_void:  # a parallel member may have found it meanwhile
                await _void(run, standing, report)
        raise Suspended([path])


async def _check_facts(run: RunContext, standing: StandingApproval) -> VerificationReport:
    """Check the approved facts; a file that had to be read is compared by its metadata from then on."""
    verifier = run.claims.quick_verifier
    report = await verifier.verify_evidence_pack(standing.pack, moment=Moment.RESUME)
    read = {
        index
        for index, verdict in enumerate(report.verdicts)
        if verdict.verified and verdict.method == "hash" and verdict.evidence.evidence_type == EvidenceType.FILE_SHA256
    }
    if not report.verified or not read or run.claims.reads_all:
        return report
    claims = list(standing.pack)
    stated = [attrs.evolve(claims[index], state=State.STATED) for index in sorted(read)]
    taken, again = await verifier.commit(EvidencePack(stated))
    if not again.verified:
        return await verifier.verify_evidence_pack(standing.pack, moment=Moment.RESUME)
    for index, claim in zip(sorted(read), taken, strict=True):
        claims[index] = attrs.evolve(claim, state=claims[index].state)
    standing.pack = attrs.evolve(standing.pack, evidence_list=claims)
    return report


async def _void(run: RunContext, standing: StandingApproval, report: VerificationReport) -> None:
    """Ask again for the present facts; facts that are missing now can only be asked for by a resume."""
    standing.is_void = True
    path, action, details = standing.path, standing.action, evidence.list_failures(report)
    if run.notifier.emit is not None:
        await run.notifier.emit(ApprovalVoided(run.workflow_id, path, standing.by, report.reason, details))
    claims = standing.pack.to_document()
    with contextlib.suppress(Exception):
        committed = await capture_facts(run, action, path)
        claims = committed.document["pack"] if committed.report.verified else claims
    since = max(run.clock.now(), standing.asked_at + timedelta(microseconds=1))  # newer, whatever the clock says
    run.waits.begin(
        Wait(
            path,
            WaitKind.APPROVAL,
            action.name,
            since,
            action.deadline(since),
            make_request_id(run, standing.request),
            claims,
            identify(action, run.secrets).arguments,
            "; ".join(details) or report.reason,
        )
    )
