"""Send a run a message from outside: a signal, an approval or a rejection. Nothing runs, and no lease is needed."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec import fitting
from flowckpt.core.codec.fitting import parse_description
from flowckpt.core.identity.values import digest_value
from flowckpt.core.records import CheckpointData, Status, generation
from flowckpt.core.records.listing import MANAGED, RunInfo
from flowckpt.core.records.wait import TAKEN, Signal, Wait, WaitKind, birth_of, encode_utc, open_waits, sent_to
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.declared import shell_word
from flowckpt.engine.run.lease import require_run
from flowckpt.engine.values.options import RunOptions
from flowckpt.errors import (
    ApprovalStaleError,
    InputError,
    NoReplyError,
    SettingError,
    SignalRefusedError,
)
from flowckpt.evidence import claims
from flowckpt.execution.claims import list_failures
from flowckpt.stores.base import Ability, StoreBase

if TYPE_CHECKING:
    from flowckpt.evidence.verifier import EvidenceVerifier


_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
"""The first and the longest interval, in seconds, at which to look for a run's reply."""

_log = logging.getLogger(__name__)


@attrs.frozen
class Sent:
    """A message sent to a run by `signal`, `approve` or `reject`.

    Attributes:
        workflow_id: the run.
        signal_id: the message's id.
        name: the signal or the approval.
        kind: `signal` or `approval`.
        path: the step that it is for; empty for any wait of this name.
        is_new: whether it was sent now; False if a message with this id was sent before.
        is_awaited: whether the run was waiting for it.
        pending_before: the number of earlier messages of this name, which are consumed first.
        status: the status of the run.
        owner: the process that runs it, as text; empty if it has no owner.
        reply: the run's reply, if the sender waited for it.
    """

    workflow_id: str
    signal_id: str
    name: str
    kind: WaitKind
    path: str
    is_new: bool
    is_awaited: bool
    pending_before: int
    status: Status
    owner: str
    reply: Any = None

    def to_document(self) -> dict[str, Any]:
        """Return the document that `signal --json`, `approve --json` and `reject --json` print."""
        document = {**attrs.asdict(self, recurse=False), "kind": str(self.kind), "status": str(self.status)}
        return {**document, "reply": codec.encode(self.reply)}


async def send_signal(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    name: str,
    *,
    data: Any = None,
    by: str = "",
    signal_id: str,
) -> Sent:
    """Send a signal to a run.

    Args:
        store: the store of the run.
        clock: the time.
        workflow_id: the run.
        name: the signal's name.
        data: what it carries.
        by: who sends it.
        signal_id: the id of this message; sending the same id again has no effect.

    Raises:
        CheckpointNotFoundError: there is no such run.
        SignalRefusedError: the run is complete, or the data do not fit the type that its wait asks for.
        EncodingError: the data cannot be recorded.
        SettingError: the store cannot deliver signals.
    """
    inbox = _require_signals(store)
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"the name of a signal must be text and not blank, got {name!r:.80}", parameter="name")
    is_record = attrs.has(type(data)) or (dataclasses.is_dataclass(data) and not isinstance(data, type))
    tree = codec.encode(data, type(data) if is_record else Any, place="data")
    info = await _load_info(store, workflow_id)
    _refuse_ended(info, name)
    before = [each for each in await _read_sent(inbox, info, name, signal_id) if each.signal_id != signal_id]
    _refuse_misfit(info, name, tree, before)
    await _warn_of_name(store, info, name)
    signal = Signal(signal_id, name, clock.now(), tree, by, birth=birth_of(info.metadata))
    is_new = await inbox.send_signal(workflow_id, signal)
    after = await _load_info(store, workflow_id)
    if after.status is Status.COMPLETED and not await _was_taken(store, workflow_id, signal_id):
        await inbox.remove_signals(workflow_id, [signal_id])
        _refuse_ended(after, name)
    return Sent(
        workflow_id,
        signal_id,
        name,
        WaitKind.SIGNAL,
        "",
        is_new,
        any(wait.find_message([signal]) for wait in info.waits),
        sum(each.kind is WaitKind.SIGNAL and each.name == name for each in before),
        after.status,
        str(after.owner or ""),
    )


async def send_once(
    store: StoreBase, clock: Clock, workflow_id: str, name: str, *, signal_id: str, **what: Any
) -> Sent:
    """Send a signal, unless the run has taken one with this id; raises the same errors as `send_signal`."""
    if not await _was_taken(store, workflow_id, signal_id):
        return await send_signal(store, clock, workflow_id, name, signal_id=signal_id, **what)
    return _sent_before(await _load_info(store, workflow_id), signal_id, name)


def _sent_before(info: RunInfo, signal_id: str, name: str) -> Sent:
    facts = False, False, 0, info.status, str(info.owner or "")
    return Sent(info.workflow_id, signal_id, name, WaitKind.SIGNAL, "", *facts)


async def send_answer(  # noqa: PLR0913 - one parameter for each part of an answer
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    name: str,
    *,
    is_approved: bool,
    by: str,
    comment: str,
    request: str,
    verifier: EvidenceVerifier | None,
    options: RunOptions,
) -> Sent:
    """Answer an approval that a run waits for.

    Args:
        store: the store of the run.
        clock: the time.
        workflow_id: the run.
        name: the approval's name, or the path of its step.
        is_approved: the answer.
        by: who answers.
        comment: why.
        request: the `Wait.request_id` of the question that is answered; empty for the one that the run asks now.
        verifier: checks the facts to approve; None for one based on the directory where the run was started.
        options: how to check them.

    Raises:
        CheckpointNotFoundError: there is no such run.
        SignalRefusedError: the run does not wait for this approval, its deadline is over, or it is already answered.
        ApprovalStaleError: the facts have changed since the run asked for approval.
        SettingError: the store cannot deliver signals.
    """
    inbox = _require_signals(store)
    latest = require_run(workflow_id, await store.load_latest(workflow_id))
    info = await _load_info(store, workflow_id)
    _refuse_ended(info, name)
    wait = _require_approval(workflow_id, name, latest)
    if request not in ("", wait.request_id):
        detail = f"the request {request!r} is over, and the run now asks {wait.request_id!r}"
        remedy = f"Read the new question ('flowckpt show {shell_word(workflow_id)}'), and answer that."
        raise SignalRefusedError(workflow_id, name, detail=detail, remedy=remedy)
    _refuse_answered(workflow_id, name, wait, sent_to(latest.metadata, await inbox.signals(workflow_id)))
    if is_approved and wait.claims:
        pack = claims.EvidencePack.from_document(wait.claims)
        report = await options.make_checker(verifier, latest.metadata).verifier.verify_evidence_pack(pack)
        if not report.verified:
            raise ApprovalStaleError(workflow_id, name, reasons=list_failures(report) or (report.reason,))
    data = {"approved": is_approved, "comment": comment}
    now, birth = clock.now(), birth_of(latest.metadata)
    _refuse_late(workflow_id, name, wait, now)
    # One id for each question: of two answers at the same time, the store takes only the first.
    question = digest_value([birth, wait.path, encode_utc(wait.since), wait.request])
    signal_id = f"answer-{question.rpartition(':')[2][:26]}"
    answer = Signal(signal_id, wait.name, now, data, by, WaitKind.APPROVAL, wait.path, wait.request, birth)
    if not await inbox.send_signal(workflow_id, answer):
        _refuse_answered(workflow_id, name, wait, sent_to(latest.metadata, await inbox.signals(workflow_id)))
        raise SignalRefusedError(workflow_id, name, detail="it has an answer", remedy=_resume_remedy(workflow_id))
    facts = True, True, 0, info.status, str(info.owner or "")
    return Sent(workflow_id, signal_id, wait.name, WaitKind.APPROVAL, wait.path, *facts)


def _refuse_answered(workflow_id: str, name: str, wait: Wait, signals: Iterable[Signal]) -> None:
    """Refuse another answer to a question that has one."""
    for each in signals:
        if each.ends(wait):
            verb = "approved" if each.data.get("approved") else "rejected"
            who = f" by {each.by}" if each.by else ""
            detail = f"it was already {verb}{who} at {each.sent_at:%Y-%m-%d %H:%M:%S} UTC"
            raise SignalRefusedError(workflow_id, name, detail=detail, remedy=_resume_remedy(workflow_id))


def _refuse_late(workflow_id: str, name: str, wait: Wait, now: datetime) -> None:
    """Refuse an answer after the deadline: the run ignores it."""
    if wait.due_at is not None and wait.is_due(now):
        detail = f"its deadline was at {wait.due_at:%Y-%m-%d %H:%M:%S} UTC"
        raise SignalRefusedError(workflow_id, name, detail=detail, remedy=_resume_remedy(workflow_id))


def _resume_remedy(workflow_id: str) -> str:
    return f"Resume: 'flowckpt resume {shell_word(workflow_id)}'."


def _require_approval(workflow_id: str, name: str, latest: CheckpointData) -> Wait:
    """Return the pending approval with a name or path."""
    waits = open_waits(latest.metadata, latest.step_results)
    approvals = [wait for wait in waits if wait.kind is WaitKind.APPROVAL]
    matches = [wait for wait in approvals if wait.path == name] or [wait for wait in approvals if wait.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        detail = f"it is waiting for {len(matches)} of this name: {_join_names([wait.path for wait in matches])}"
        raise SignalRefusedError(workflow_id, name, detail=detail, remedy="Give the path of the step instead.")
    if any(wait.kind is WaitKind.SIGNAL and wait.name == name for wait in waits):
        send = f"flowckpt signal {shell_word(workflow_id)} {shell_word(name)}"
        detail, remedy = f"it is waiting for the signal {name!r}, not for an approval", f"Send it with '{send}'."
        raise SignalRefusedError(workflow_id, name, detail=detail, remedy=remedy)
    known = _join_names([wait.name for wait in approvals])
    detail = "it is not waiting for this approval" + (f"; it is waiting for {known}" if approvals else "")
    raise SignalRefusedError(workflow_id, name, detail=detail)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")


def _require_signals(store: StoreBase) -> StoreBase:
    if not store.has(Ability.SIGNALS):
        raise SettingError(
            f"{store!r} cannot deliver signals",
            setting="checkpoint_store",
            remedy="Use another store, or give it the methods send_signal, signals and remove_signals.",
        )
    return store


async def _load_info(store: StoreBase, workflow_id: str) -> RunInfo:
    return require_run(workflow_id, await store.describe_run(workflow_id))


def _refuse_ended(info: RunInfo, name: str) -> None:
    if info.workflow_name == MANAGED:
        detail = "it is a task of a CheckpointManager, which never waits for signals"
        remedy = "To continue the task, run the program that created it again."
        raise SignalRefusedError(info.workflow_id, name, detail=detail, remedy=remedy)
    if info.status is Status.COMPLETED:
        raise SignalRefusedError(
            info.workflow_id,
            name,
            detail="the run is complete, so no step can use it",
            remedy=f"'flowckpt show {shell_word(info.workflow_id)}' shows how the run ended.",
        )


async def _read_sent(inbox: StoreBase, info: RunInfo, name: str, signal_id: str) -> list[Signal]:
    """Return the messages to a run.

    Raises:
        SignalRefusedError: the store still has a message with this id for an earlier run, and would not replace it.
    """
    signals = await inbox.signals(info.workflow_id)
    if any(each.signal_id == signal_id and each.birth != birth_of(info.metadata) for each in signals):
        detail = f"the store still has a message {signal_id!r} for an earlier run with the same id"
        raise SignalRefusedError(info.workflow_id, name, detail=detail, remedy="Send it with another id.")
    return sent_to(info.metadata, signals)


def _refuse_misfit(info: RunInfo, name: str, tree: Any, before: Sequence[Signal]) -> None:
    """Refuse data that no waiting step could use, as far as the types of their waits are recorded."""
    waits = [wait for wait in info.waits if wait.kind is WaitKind.SIGNAL and wait.name == name]
    if not waits or any(each.ends(wait) for each in before for wait in waits):
        return  # for a later wait, whose type is not known yet
    plain = codec.decode(tree, place="data")
    misfits = [fitting.find_misfit(plain, parse_description(wait.data_type), "its data") for wait in waits]
    if all(misfits):
        detail = f"{waits[0].path!r} waits for it, and {misfits[0]}"
        raise SignalRefusedError(info.workflow_id, name, detail=detail, remedy="Nothing was sent: send what fits.")


async def _warn_of_name(store: StoreBase, info: RunInfo, name: str) -> None:
    """Warn if a run waits for signals with other names, and has never waited for this one."""
    names = sorted({wait.name for wait in info.waits if wait.kind is WaitKind.SIGNAL})
    if not names or name in names:
        return
    digest = digest_value(name)
    latest = await store.load_latest(info.workflow_id)
    results = () if latest is None else latest.step_results
    if not any(each.step_type == "wait" and each.arguments.get("signal") == digest for each in results):
        message = "run %s has never waited for the signal %r; it is waiting for %s"
        _log.warning(message, info.workflow_id, name, _join_names(names))


async def _was_taken(store: StoreBase, workflow_id: str, signal_id: str) -> bool:
    latest = await store.load_latest(workflow_id)
    return latest is not None and _has_taken(latest, signal_id)


def _has_taken(latest: CheckpointData, signal_id: str) -> bool:
    return signal_id in latest.metadata.get(TAKEN, ()) or any(each.signal == signal_id for each in latest.step_results)


async def was_sent(store: StoreBase, workflow_id: str, signal_id: str) -> bool:
    """Return whether a message with this id is pending for a run, or was consumed by it.

    Raises:
        CheckpointNotFoundError: there is no such run.
        SettingError: the store cannot deliver signals.
    """
    inbox, latest = _require_signals(store), require_run(workflow_id, await store.load_latest(workflow_id))
    if _has_taken(latest, signal_id):
        return True
    return any(each.signal_id == signal_id for each in sent_to(latest.metadata, await inbox.signals(workflow_id)))


# A signal and its reply. The run's record has both: the wait that consumed the signal, and the step that replied.


async def ask(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    name: str,
    *,
    data: Any,
    by: str,
    signal_id: str,
    patience_seconds: float,
) -> Sent:
    """Send a signal to a run, unless it was sent before, and wait for the reply.

    Args:
        store: the store of the run.
        clock: the time.
        workflow_id: the run.
        name: the signal's name.
        data: what it carries.
        by: who sends it.
        signal_id: the id of this message; sending the same id again has no effect.
        patience_seconds: how long to wait.

    Raises:
        NoReplyError: the run has not replied in time, or has completed without a reply.
        SignalRefusedError: the signal was refused; see `send_signal`.
    """
    if await was_sent(store, workflow_id, signal_id):
        sent = _sent_before(await _load_info(store, workflow_id), signal_id, name)
    else:
        sent = await send_signal(store, clock, workflow_id, name, data=data, by=by, signal_id=signal_id)
    began_ns, nap, seen = clock.elapsed_ns(), _FIRST_LOOK, None
    while True:
        info = await _load_info(store, workflow_id)
        if (standing := (info.attempt, info.updated_at, info.steps, info.status)) != seen:
            seen = standing
            reply = await _reply_to(store, workflow_id, signal_id, info.attempt)
            if reply is not None:
                return attrs.evolve(sent, reply=reply[0], status=info.status)
        waited_seconds = (clock.elapsed_ns() - began_ns) / 1e9
        detail = f"the run has not replied after {patience_seconds:g} s"
        if info.status is Status.COMPLETED:
            detail = "the run has completed without a reply"
        if info.status is Status.COMPLETED or waited_seconds >= patience_seconds:
            raise NoReplyError(workflow_id, name, signal_id=signal_id, detail=detail)
        await clock.sleep(min(nap, patience_seconds - waited_seconds))
        nap = min(nap * 2, _LAST_LOOK)


async def _reply_to(store: StoreBase, workflow_id: str, signal_id: str, newest: int) -> tuple[Any] | None:
    """Look for the reply in the newest checkpoint, an earlier generation, or an attempt whose end no longer counts."""
    checkpoints = [await store.load_latest(workflow_id)]
    if checkpoints[0] is not None and (text := generation.reply_to(checkpoints[0].metadata, signal_id)) is not None:
        return (codec.decode(json.loads(text), place="reply"),)
    if store.has(Ability.ATTEMPTS):
        checkpoints += [await store.load_attempt(workflow_id, each) for each in (newest, newest - 1) if each > 0]
    for data in checkpoints:
        for result in reversed(data.step_results if data is not None else ()):
            if result.step_type == "reply" and result.signal == signal_id and result.success:
                return (result.output,)
    return None
