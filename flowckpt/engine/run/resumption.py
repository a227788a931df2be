"""The start of a resume or a plan: read the record, compare it with the inputs, check the evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.results import append_result, as_view, encode_time
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.records import CheckpointData, History, HistoryView, Status, StepError, StepResult
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import IMPORTED
from flowckpt.core.records.wait import TAKEN, open_waits, sent_to, waits_in
from flowckpt.core.system.declared import type_name
from flowckpt.core.system.functions import versions_of
from flowckpt.core.system.process import ProcessIdentity, current_process, is_alive
from flowckpt.engine.rules.crash_loop import KEY, CrashCount, crash_count_of, limit_of
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.paths import (
    FAILED_AT,
    ROLLBACK,
    find_handled_failure,
    find_path,
    find_undone_in_races,
    is_stopped,
    is_within,
    results_after,
    root_failures,
    step_of,
    undo_path,
    undone_paths,
)
from flowckpt.engine.rules.reasons import MAX_CRASHES, OnStale, Reason, ReasonKind, ResumePolicy, ReuseMode
from flowckpt.engine.values.inputs import BoundInputs, rebind_recorded
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.superseded import AT_MOST_ONCE, GUARDED, LEAVES_EARLIER, Superseded
from flowckpt.errors import (
    CrashLoopError,
    FinalError,
    InputError,
    RunFinalError,
    WorkflowChangedError,
)
from flowckpt.execution.claims import ClaimChecker
from flowckpt.stores.base import (
    Ability,
    Lease,
    StoreBase,
)

if TYPE_CHECKING:
    from flowckpt.core.records import RunInfo
    from flowckpt.core.records.wait import Signal


# Crash loops, as read from a store.


async def count_crashes(store: StoreBase, lease: Lease, latest: CheckpointData, started: Sequence[str]) -> CrashCount:
    """Return how often a run crashed at its last crash site, just after its lease was taken.

    Args:
        store: the store of the run.
        lease: the lease, with the number of the attempt that starts now.
        latest: the newest checkpoint.
        started: the steps that the last attempt started after it; see `read_started_steps`.
    """
    silent = 0
    between = range(latest.attempt + 1, lease.attempt)
    if between and store.has(Ability.ATTEMPTS):
        written = await store.attempts(lease.workflow_id)  # includes attempts that only deleted checkpoints
        before = await store.claimed_by(lease.workflow_id, latest.attempt)
        for number in (each for each in between if each not in written):
            process = await store.claimed_by(lease.workflow_id, number)
            # A process that claims a generation and dies before its first save counts as one crash.
            silent += process is None or process != before
            before = process
    count = crash_count_of(latest, started, silent=silent)
    seen = await store.last_seen(lease.workflow_id, latest.attempt) if count.count else None
    return count if seen is None else attrs.evolve(count, seen=encode_time(seen))


async def crash_loop(store: StoreBase, info: RunInfo, *, max_crashes: int = MAX_CRASHES) -> CrashCount | None:
    """Return the crash count of a run in a crash loop; None if a resume would start.

    Args:
        store: the store of the run.
        info: the run, as the store lists it.
        max_crashes: the limit, if its record has none.
    """
    most, counted = limit_of(info.metadata, default=max_crashes), info.metadata.get(KEY)
    before = 0 if counted is None else counted["count"]
    if info.status is not Status.CRASHED or not 0 < most <= before + 1 or (counted and info.steps > counted["results"]):
        return None
    latest = await store.load_latest(info.workflow_id)
    if latest is None:
        return None
    started = await read_started_steps(store, info.workflow_id, latest)
    return await find_crash_loop(store, info.workflow_id, latest, started, most=most)


async def find_crash_loop(
    store: StoreBase, workflow_id: str, latest: CheckpointData, started: Sequence[str], *, most: int
) -> CrashCount | None:
    """Return how often a run crashed at its last crash site, if it is in a crash loop; otherwise None.

    Args:
        store: the store of the run.
        workflow_id: the run.
        latest: the newest checkpoint.
        started: the steps that the last attempt started after it.
        most: how often a run may crash at one step; 0 for no limit.
    """
    if latest.status is not Status.RUNNING:
        return None
    count = crash_count_of(latest, started)
    if not count.is_crash_loop(most):
        return None
    return count if await store.owner(workflow_id) is None else None


def crash_loop_error(workflow_id: str, crashes: CrashCount) -> CrashLoopError:
    """Return the error of a resume of a run in a crash loop.

    Args:
        workflow_id: the run.
        crashes: how often it crashed.
    """
    return CrashLoopError(
        workflow_id, path=crashes.path, count=crashes.count, since=crashes.since, candidates=crashes.paths
    )


async def read_started_steps(store: StoreBase, workflow_id: str, latest: CheckpointData) -> tuple[str, ...]:
    """Return the steps that the last attempt started after its last checkpoint, as far as the store knows."""
    attempt, paths = await store.started_steps(workflow_id)
    return paths if attempt == latest.attempt else ()


ANSWERED = ("approval", "wait")
"""The types of steps that end with a message."""

_FINAL = type_name(FinalError)

REUSABLE = "reusable_from"
"""Metadata key: the attempts whose results may be reused although they are no longer in the history."""
RUNNERS = "runners"
"""Metadata key: the processes of earlier owners that may still be running a step in doubt, by path."""
SETTLED = "settled"
"""Metadata key: the users' decisions about steps in doubt."""
NOT_REUSABLE = "not_reusable"
"""Metadata key: the steps whose results of those attempts must not be reused."""


@attrs.frozen(eq=False, repr=False)
class Resumption:
    """The start of a resume.

    Attributes:
        latest: the checkpoint that the run continues from.
        bound: the run's inputs.
        history: the recorded results that may still count.
        judge: decides which of them count.
        cut: the results that do not count from the start, and why, by path.
        superseded: dropped results, of this and earlier reruns, that their steps must check.
        in_doubt: the steps with a recorded start and no recorded end.
        spare: results of earlier attempts that their steps may reuse, by path.
        interrupted: the steps that were running when the process died or the run stopped, as far as it noted them: only a hint.
        messages: the unconsumed messages to a waiting run.
        is_guarded: whether the run has effects that are not repeated by default.
        final: why a resume is refused, if the run failed for good.
        undone: the steps that were undone when races stopped them.
    """

    latest: CheckpointData
    bound: BoundInputs
    history: History
    judge: Judge
    cut: Mapping[str, tuple[StepResult, Reason]]
    superseded: Superseded
    in_doubt: frozenset[str]
    spare: Mapping[str, StepResult] = attrs.field(factory=dict)
    interrupted: frozenset[str] = frozenset()
    messages: Sequence[Signal] = ()
    is_guarded: bool = False
    final: RunFinalError | None = None
    undone: frozenset[str] = frozenset()

    def list_begun(self) -> list[str]:
        """Return the steps that have begun without a known end."""
        return list_begun(self.latest.metadata, self.latest.step_results, self.in_doubt, self.superseded)

    def list_undecided(self) -> dict[str, str]:
        """Return the at-most-once steps that may have been done, with their functions, and that the user has not decided."""
        policy = self.judge.policy
        doubts = {} if policy.is_forced else self.superseded.list_doubts(self.latest.metadata, self.in_doubt)
        return {path: function for path, function in doubts.items() if path not in policy.settled}

    def is_undone(self, path: str) -> bool:
        """Return whether a step's result does not count because its effect was undone."""
        return path in self.undone or (path in self.cut and self.cut[path][1].kind is ReasonKind.UNDONE)

    def find_earlier(
        self, path: str, step: Step[Any], dropped: Iterable[StepResult]
    ) -> tuple[StepResult | None, Reason | None]:
        """Return the earlier result of a step, if it no longer counts, and the reason.

        Args:
            path: the step.
            step: the step as it is yielded now.
            dropped: the results that the replay has dropped so far.
        """
        old = self.superseded.get(path)
        if path in self.cut and (old is None or LEAVES_EARLIER.isdisjoint(self.cut[path][0].marks)):
            return self.cut[path]
        if old is not None:
            detail = "its earlier result no longer counts: the run continued from before it"
            return old, Reason(ReasonKind.UPSTREAM, detail)
        for each in dropped:
            if each.path == path:
                action = step.action
                if each.step_type == action.step_type and each.function == action.function_name:
                    return each, Reason(ReasonKind.UPSTREAM, "the step that contains it runs again")
                call = f"{action.step_type} {action.function_name}".rstrip()
                return each, Reason(ReasonKind.CODE, f"was {each.step_type} {each.function}, is {call}")
        return None, None


def final_error(workflow_id: str, latest: CheckpointData) -> RunFinalError | None:
    """Return the error that refuses to resume a run that failed for good; None for any other run."""
    error = latest.error
    if latest.status is not Status.FAILED or error is None:
        return None
    failed = {each.path: each.error for each in latest.step_results if each.error is not None} if error.causes else {}
    for each in (error, *(failed[path] for path in error.causes if path in failed)):
        if is_final(each):
            step = f"step {each.path!r} with " if each.path else ""
            return RunFinalError(workflow_id, detail=f"{step}{each.type}: {each.message}")
    return None


def is_final(error: StepError) -> bool:
    """Return whether a recorded error is a `FinalError`."""
    return error.type == _FINAL or _FINAL in error.bases


async def read_resumption(  # noqa: PLR0913 - one parameter for each choice of a resume
    workflow: Workflow[Any, Any],
    workflow_id: str,
    latest: CheckpointData,
    started: Sequence[str],
    *,
    inputs: Mapping[str, Any],
    options: RunOptions,
    claims: ClaimChecker,
    store: StoreBase,
    drops_answers: bool = False,
) -> Resumption:
    """Read a record, compare it with the inputs, and check its evidence.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        started: the steps that the last attempt started after it; see `read_started_steps`.
        inputs: inputs given again; may be empty.
        options: the options of the resume.
        claims: checks the recorded claims.
        store: the store, for the reusable results of earlier attempts.
        drops_answers: whether approvals and signals must be given again, as always for an imported run that can continue.

    Raises:
        WorkflowChangedError: the record belongs to another workflow.
        InputMismatchError: an input differs from the recorded one.
        InputError: an input is unknown.
        StepNotFoundError: the step given with `--from` is not in the record.
    """
    check_workflow_name(workflow, workflow_id, latest)
    latest, runners = await note_runners(store, workflow_id, latest, is_stolen=options.steal)
    bound = rebind_recorded(workflow, latest, inputs)
    view, superseded = as_view(latest.step_results), Superseded(latest.metadata)
    policy = attrs.evolve(options.policy, runners=runners, birth=latest.metadata.get(BIRTH) or workflow_id)
    policy = _resolve_from_step(policy, workflow_id, latest, superseded)
    _refuse_unknown_decisions(policy, workflow_id, latest, superseded)
    cut, history, undone = _split_history(latest, view, policy, drops_answers=drops_answers)
    if cut:
        still_done = (result for result, reason in cut.values() if reason.kind is not ReasonKind.UNDONE)
        superseded.add(still_done, is_decided=policy.reruns_what_follows)
    if (latest.in_flight or superseded) and superseded.list_doubts(latest.metadata, latest.in_flight):
        superseded.recorded_once = await _list_recorded_once(store, workflow_id)
    spare = await _read_spare(store, workflow_id, latest, policy, {*(result.path for result in history.results), *cut})
    counts = [each for each in (*history.notable(), *spare.values()) if each.path not in undone]
    reports = await claims.verify_results(counts)

    def is_same_code() -> bool:
        return bool(latest.fingerprint) and latest.fingerprint == step_fingerprint(workflow.function)

    judge = Judge(policy, reports, bound.known_secrets(), latest.attempt, is_same_code, history.results)
    if policy.on_package_change is not OnStale.REUSE:
        judge.packages.update(find_moved_versions(latest.metadata))
    interrupted = frozenset(started) - view.ended(started) if started else frozenset[str]()
    parts = history, judge, cut, superseded, frozenset(latest.in_flight), spare, interrupted
    is_guarded = not all(GUARDED.isdisjoint(each.marks) for each in (*history.notable(), *superseded.values()))
    final = None if options.from_step else final_error(workflow_id, latest)
    messages = await _read_messages(store, workflow_id, latest)
    return Resumption(latest, bound, *parts, messages, is_guarded, final, undone)


async def note_runners(
    store: StoreBase, workflow_id: str, latest: CheckpointData, *, is_stolen: bool
) -> tuple[CheckpointData, dict[str, list[ProcessIdentity]]]:
    """Find the processes of earlier owners that may still be running a step in doubt; return them, noted in the checkpoint.

    An owner is one of them if the run did not end under it, and it is not known to be dead. In this process, only a
    stolen run can still be running.

    Args:
        store: the store of the run.
        workflow_id: the run.
        latest: the newest checkpoint.
        is_stolen: whether the run is taken although its owner may be alive.
    """
    noted: Mapping[str, Any] = latest.metadata.get(RUNNERS, {})
    if not latest.in_flight:
        return latest, {}
    owner = await store.claimed_by(workflow_id, latest.attempt) if latest.status is Status.RUNNING else None
    owners = [] if owner is None or (owner == current_process() and not is_stolen) else [owner]
    runners: dict[str, list[ProcessIdentity]] = {}
    for path in latest.in_flight:
        processes = dict.fromkeys([*(ProcessIdentity(*each) for each in noted.get(path, ())), *owners])
        if living := [each for each in processes if is_alive(each) is not False]:
            runners[path] = living
    metadata = add_runners(latest.metadata, runners)
    return latest if metadata == latest.metadata else attrs.evolve(latest, metadata=metadata), runners


def add_runners(metadata: Mapping[str, Any], runners: Mapping[str, Sequence[ProcessIdentity]]) -> dict[str, Any]:
    """Return the metadata of a run with the processes that may still be running a step in doubt, by path."""
    rest = {key: value for key, value in metadata.items() if key != RUNNERS}
    noted = {path: [[*attrs.astuple(each)] for each in processes] for path, processes in runners.items()}
    return {**rest, RUNNERS: noted} if noted else rest


def _split_history(
    latest: CheckpointData, view: HistoryView, policy: ResumePolicy, *, drops_answers: bool
) -> tuple[dict[str, tuple[StepResult, Reason]], History, frozenset[str]]:
    """Return the results that no longer count, the history of the others, and the steps undone in races."""
    undoing = [each for each in view.notable() if each.step_type == ROLLBACK]
    of_races = find_undone_in_races(view) if undoing else {}
    with_run = [each for each in undoing if step_of(each.path) not in of_races]
    cut = _find_cut(latest, view, policy, undone_paths(with_run) if with_run else (), drops_answers=drops_answers)
    for path in of_races.keys() & cut.keys():
        cut[path] = cut[path][0], Reason(ReasonKind.UNDONE, "it was undone when a race stopped it")
    gone = {undo_path(path) for path in cut} | {each.path for each in with_run}
    undone = frozenset(undone_paths(undoing)) & of_races.keys() if of_races else frozenset[str]()
    return cut, trim_history(view, cut.keys() | gone), undone


async def _read_messages(store: StoreBase, workflow_id: str, latest: CheckpointData) -> Sequence[Signal]:
    """Return the unconsumed messages to a waiting run, for its plan."""
    if not waits_in(latest.metadata):
        return ()
    taken = {*latest.metadata.get(TAKEN, ()), *(result.signal for result in latest.step_results)}
    sent = sent_to(latest.metadata, await store.signals(workflow_id))
    return [message for message in sent if message.signal_id not in taken]


def list_begun(
    metadata: Mapping[str, Any], results: Sequence[StepResult], unended: Iterable[str], superseded: Superseded
) -> list[str]:
    """Return the steps that have begun without a known end: those that wait, and those that may have been done."""
    waits = open_waits(metadata, results)
    return [*unended, *(wait.path for wait in waits), *superseded.list_failed_once()]


async def _list_recorded_once(store: StoreBase, workflow_id: str) -> frozenset[str]:
    """Return the at-most-once steps that some attempt recorded, such as those that were undone since."""
    found: set[str] = set()
    for attempt in await store.attempts(workflow_id) if store.has(Ability.ATTEMPTS) else ():
        data = await store.load_attempt(workflow_id, attempt)
        found.update(each.path for each in (() if data is None else data.step_results) if AT_MOST_ONCE in each.marks)
    return frozenset(found)


async def _read_spare(
    store: StoreBase, workflow_id: str, latest: CheckpointData, policy: ResumePolicy, taken: Collection[str]
) -> dict[str, StepResult]:
    """Return the results that earlier attempts left for reuse, if the reusing attempt died before it finished."""
    if policy.reuse is not ReuseMode.INPUTS or REUSABLE not in latest.metadata:
        return {}
    taken = {*taken, *latest.in_flight, *latest.metadata.get(NOT_REUSABLE, ())}
    spare: dict[str, StepResult] = {}
    if store.has(Ability.ATTEMPTS):
        for attempt in latest.metadata[REUSABLE]:
            data = await store.load_attempt(workflow_id, attempt)
            results = () if data is None else data.step_results
            reusable = (each for each in results if each.success or is_stopped(each) or each.step_type == ROLLBACK)
            spare.update({each.path: each for each in reusable if each.path not in taken})
    if latest.metadata.get(IMPORTED) is True:
        return {path: result for path, result in spare.items() if not is_answer(result)}
    return spare


def add_reusable(metadata: Mapping[str, Any], attempt: int, dropped: Collection[str]) -> dict[str, Any]:
    """Return metadata that record an attempt whose dropped results may be reused, except those of some steps.

    Args:
        metadata: the metadata of the run.
        attempt: the attempt.
        dropped: the paths of the steps that must run again, because they are stale or were requested.
    """
    return {
        **metadata,
        REUSABLE: sorted({*metadata.get(REUSABLE, ()), attempt}),
        NOT_REUSABLE: sorted({*metadata.get(NOT_REUSABLE, ()), *dropped}),
    }


def accept_import(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an imported run after a user has resumed it.

    Results that earlier attempts left for reuse are not reused if the file was not authenticated.
    """
    trimmed = drop_reusable(metadata) if metadata[IMPORTED] is True else metadata
    return {name: value for name, value in trimmed.items() if name != IMPORTED}


def drop_reusable(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata without the attempts whose results may be reused: the run has found all its results."""
    if REUSABLE not in metadata:
        return metadata
    return {name: value for name, value in metadata.items() if name not in (REUSABLE, NOT_REUSABLE)}


def trim_history(view: HistoryView, gone: Collection[str]) -> History:
    """Return the history of the results that still count.

    Args:
        view: the recorded results.
        gone: the paths of results that no longer count.
    """
    if not gone:
        length = len(view)
    else:
        length = next((index for index, result in enumerate(view) if result.path in gone), len(view))
    if length == len(view.history.results):
        return view.history
    history = view.history.forked(length)
    for result in view[length:]:
        if result.path not in gone:
            append_result(history, result)
    return history


def _find_cut(
    latest: CheckpointData,
    view: HistoryView,
    policy: ResumePolicy,
    undone: Collection[str],
    *,
    drops_answers: bool,
) -> dict[str, tuple[StepResult, Reason]]:
    """Return the results that do not count from the start, and why.

    A failed run continues before the step whose failure ended it, so that the step is executed again. A failure that
    the generator handled stays: it is part of the run's history.
    """
    cut: dict[str, tuple[StepResult, Reason]] = {}
    if drops_answers or (latest.metadata.get(IMPORTED) is True and latest.status is not Status.COMPLETED):
        for result in filter(is_answer, view):
            reason = Reason(ReasonKind.EVIDENCE, "it was imported, and its answer may be forged")
            _cut_from(cut, view, result.path, reason, takes_nested=False)
    failed = latest.error.path if latest.status is Status.FAILED and latest.error is not None else ""
    if failed := failed or latest.metadata.get(FAILED_AT, ""):
        reason = Reason(ReasonKind.FAILED, "it failed, and that ended the run")
        direct = (path for path in root_failures(view, failed) if find_handled_failure(view, path) is None)
        for path in direct:
            _cut_from(cut, view, path, reason, takes_nested=False)
    for path in sorted(undone):
        _cut_from(cut, view, path, Reason(ReasonKind.UNDONE, "it was undone when the run failed"), takes_nested=False)
    for wait in waits_in(latest.metadata):
        if wait.voided and any(each.path == wait.path and wait.is_newer_than(each) for each in view):
            reason = Reason(ReasonKind.EVIDENCE, f"it is void: {wait.voided}")
            if policy.decide((reason,)) is OnStale.RERUN:  # even if the facts are back: their return is not approved
                _cut_from(cut, view, wait.path, reason, takes_nested=False)
    if policy.reuse is ReuseMode.PREFIX and policy.from_path:
        reason = Reason(ReasonKind.FORCED, "everything from this step on runs again")
        _cut_from(cut, view, policy.from_path, reason, takes_nested=True)
    return cut


def is_answer(result: StepResult) -> bool:
    """Return whether a message ended the step: an approval or a signal."""
    return result.step_type in ANSWERED and (result.success or bool(result.signal))


def _cut_from(
    cut: dict[str, tuple[StepResult, Reason]], view: HistoryView, path: str, reason: Reason, *, takes_nested: bool
) -> None:
    """Cut a step and everything after it."""
    steps = [each for each in view if each.step_type != ROLLBACK]
    within = [each for each in steps if (is_within(each.path, path) if takes_nested else each.path == path)]
    if not within:
        return
    for result in within:
        cut[result.path] = result, reason
    upstream = Reason(ReasonKind.UPSTREAM, f"{within[0].path} runs again before it")
    for result in results_after(steps, path):
        cut.setdefault(result.path, (result, upstream))


def _resolve_from_step(
    policy: ResumePolicy, workflow_id: str, latest: CheckpointData, superseded: Superseded
) -> ResumePolicy:
    """Return the policy with the path of the step of `--from`, given as a path or as a name (then its first use)."""
    wanted = policy.from_path
    if not wanted or wanted in latest.in_flight:
        return policy
    results = [*as_view(latest.step_results), *superseded.values()]
    return attrs.evolve(policy, from_path=find_path(workflow_id, results, wanted))


def _refuse_unknown_decisions(
    policy: ResumePolicy, workflow_id: str, latest: CheckpointData, superseded: Superseded
) -> None:
    """Refuse a decision about a step that cannot be in question; the plan finds out which of the others are."""
    results = (*as_view(latest.step_results), *superseded.values()) if policy.settled else ()
    once = [each for each in results if AT_MOST_ONCE in each.marks]
    doubtful = [*latest.in_flight, *(each.path for each in once if not each.success or each.path in superseded)]
    for path in policy.settled:
        if path not in latest.in_flight and all(each.path != path for each in once):
            raise needless_decision_error(policy, workflow_id, path, dict.fromkeys(doubtful))


def needless_decision_error(policy: ResumePolicy, workflow_id: str, path: str, doubtful: Collection[str]) -> InputError:
    """Return the error of a decision about a step that is not in doubt.

    Args:
        policy: the policy with the decision.
        workflow_id: the run.
        path: the step.
        doubtful: the steps that are in doubt.
    """
    option = "--done" if policy.settled[path].is_done else "--not-done"
    known = f"in doubt: {', '.join(map(repr, doubtful))}" if doubtful else "none of its steps is"
    return InputError(
        f"{option} {path}: step {path!r} of run {workflow_id!r} is not in doubt; {known}",
        parameter=path,
        remedy="Leave the option out. To run a recorded step again, use --from.",
    )


def add_decisions(metadata: Mapping[str, Any], policy: ResumePolicy, at: datetime) -> dict[str, Any]:
    """Return metadata with the user's decisions about steps in doubt.

    Args:
        metadata: the metadata of the run.
        policy: the policy with the decisions.
        at: the time of the decisions.
    """
    made = [
        {"step": path, "done": each.is_done, "by": each.by, "comment": each.comment, "at": encode_time(at)}
        for path, each in policy.settled.items()
    ]
    return {**metadata, SETTLED: [*metadata.get(SETTLED, ()), *made]} if made else dict(metadata)


def check_workflow_name(workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
    """Refuse the record of another workflow.

    Raises:
        WorkflowChangedError: the checkpoint belongs to another workflow.
    """
    if latest.workflow_name != workflow.name:
        raise WorkflowChangedError(
            f"run {workflow_id!r} belongs to workflow {latest.workflow_name!r}, not to {workflow.name!r}",
            workflow_name=workflow.name,
            recorded=latest.workflow_name,
            yielded=workflow.name,
            remedy="Resume it with the workflow that started it.",
        )


# The versions of installed packages that the program uses.

PACKAGES = "packages"
"""Metadata key: the versions of the packages that the program used, by the first attempt that used them."""


def find_moved_versions(metadata: Mapping[str, Any]) -> dict[int, dict[str, str]]:
    """Return the packages with another version than recorded, as `2.2.3 → 3.0.1`, by the attempt that used them."""
    recorded: Mapping[str, Mapping[str, str]] = metadata.get(PACKAGES, {})
    if not recorded:
        return {}
    installed = versions_of({name for versions in recorded.values() for name in versions})
    moved = {
        int(attempt): {
            name: f"{version} → {installed.get(name, 'not installed')}"
            for name, version in versions.items()
            if installed.get(name) != version
        }
        for attempt, versions in recorded.items()
    }
    return moved if any(moved.values()) else {}
