"""The start of a resume or of its plan: the record read, and compared with the inputs and with the world."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.results import append_result, as_view, encode_time
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.records import CheckpointData, History, HistoryView, Status, StepError, StepResult
from flowckpt.core.records.listing import IMPORTED
from flowckpt.core.records.wait import TAKEN, open_waits, sent_to, waits_in
from flowckpt.core.system.declared import type_name
from flowckpt.core.system.functions import versions_of
from flowckpt.engine.rules.crash_loop import KEY, CrashCount, crash_count_of, limit_of
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.paths import (
    ROLLBACK,
    failures_behind,
    handled_failure,
    is_stopped,
    is_within,
    results_behind,
    step_of,
    undo_path,
    undone_in_races,
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
    StepNotFoundError,
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


# A crash loop: what its record says, read from a store.


async def crash_count_at_resume(store: StoreBase, lease: Lease, latest: CheckpointData) -> CrashCount:
    """Return how often a run that was just taken over has died where it died last.

    Args:
        store: where it lies.
        lease: what says which attempt begins now.
        latest: its newest checkpoint.
    """
    silent = 0
    between = range(latest.attempt + 1, lease.attempt)
    if between and store.has(Ability.ATTEMPTS):
        written = await store.attempts(lease.workflow_id)  # those that only deleted checkpoints are in it
        before = await store.claimed_by(lease.workflow_id, latest.attempt)
        for number in (each for each in between if each not in written):
            process = await store.claimed_by(lease.workflow_id, number)
            # A process that claims a generation, and dies before its first save, has died once.
            silent += process is None or process != before
            before = process
    found = crash_count_of(latest, await started_steps_of(store, lease.workflow_id, latest), silent=silent)
    seen = await store.last_seen(lease.workflow_id, latest.attempt) if found.count else None
    return found if seen is None else attrs.evolve(found, seen=encode_time(seen))


async def crash_loop(store: StoreBase, info: RunInfo, *, max_crashes: int = MAX_CRASHES) -> CrashCount | None:
    """Return the crash count of a run in a crash loop; None if a resume would start.

    Args:
        store: the store of the run.
        info: the run, as the store lists it.
        max_crashes: the limit, if its record has none.
    """
    most, said = limit_of(info.metadata, default=max_crashes), info.metadata.get(KEY)
    before = 0 if said is None else said["count"]
    if info.status is not Status.CRASHED or not 0 < most <= before + 1 or (said and info.steps > said["results"]):
        return None
    latest = await store.load_latest(info.workflow_id)
    return None if latest is None else await crash_loop_at(store, info.workflow_id, latest, most=most)


async def crash_loop_at(store: StoreBase, workflow_id: str, latest: CheckpointData, *, most: int) -> CrashCount | None:
    """Return how often a run has died where it died last, if it is in a crash loop.

    Args:
        store: where it lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        most: how often a run may die at one step; 0 for no limit.
    """
    if latest.status is not Status.RUNNING:
        return None
    found = crash_count_of(latest, await started_steps_of(store, workflow_id, latest))
    if not found.is_crash_loop(most):
        return None
    return found if await store.owner(workflow_id) is None else None


async def crash_loop_before(
    store: StoreBase, workflow_id: str, latest: CheckpointData, options: RunOptions, *, max_crashes: int
) -> CrashCount | None:
    """Return the crash loop that a resume with these options would refuse."""
    if options.force or options.steal:
        return None
    most = limit_of(latest.metadata, options.max_crashes, max_crashes)
    return await crash_loop_at(store, workflow_id, latest, most=most)


def crash_loop_error(workflow_id: str, crashes: CrashCount) -> CrashLoopError:
    """Return the error of a resume of a run in a crash loop.

    Args:
        workflow_id: the run.
        crashes: how often it died.
    """
    return CrashLoopError(
        workflow_id, path=crashes.path, count=crashes.count, since=crashes.since, candidates=crashes.paths
    )


async def started_steps_of(store: StoreBase, workflow_id: str, latest: CheckpointData) -> tuple[str, ...]:
    """Return the steps that the last attempt started since its last checkpoint, as far as the store knows."""
    attempt, paths = await store.started_steps(workflow_id)
    return paths if attempt == latest.attempt else ()


ANSWERED = ("approval", "wait")
"""The types of steps that a person or a program ends by a message."""

_FINAL = type_name(FinalError)

REUSABLE = "reusable_from"
"""In the metadata: the attempts whose results may be reused although the history no longer holds them."""
SETTLED = "settled"
"""In the metadata: what people decided about steps in doubt."""
NOT_REUSABLE = "not_reusable"
"""Beside it: the steps whose results of those attempts are to be run again."""


@attrs.frozen(eq=False, repr=False)
class Resumption:
    """The start of a resume.

    Attributes:
        latest: the checkpoint that the run continues from.
        bound: the run's inputs.
        history: the recorded results that may still count.
        judge: says which of them do.
        cut: the results that do not count from the beginning, and why, by path.
        superseded: those of them, and of earlier reruns, that their steps must look at.
        in_doubt: the steps whose start was recorded and whose end was not.
        spare: results of earlier attempts that their steps may get back, by path.
        begun: the steps that a process was at when it died, as far as it could leave word: a hint, which decides nothing.
        crash_loop: how often the run died, where a resume would refuse it for that.
        messages: what was sent to the run and is not taken, where it waits for something.
        is_guarded: whether the run has effects that no default repeats.
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
    begun: frozenset[str] = frozenset()
    crash_loop: CrashCount | None = None
    messages: Sequence[Signal] = ()
    is_guarded: bool = False
    final: RunFinalError | None = None
    undone: frozenset[str] = frozenset()

    @property
    def unended(self) -> list[str]:
        """The steps that are in doubt, and those that wait."""
        return [*self.in_doubt, *(wait.path for wait in open_waits(self.latest.metadata, self.latest.step_results))]

    def is_undone(self, path: str) -> bool:
        """Tell whether the result of a step does not count because it was undone: then nothing is left of what it did.

        Args:
            path: the step.
        """
        return path in self.undone or (path in self.cut and self.cut[path][1].kind is ReasonKind.UNDONE)

    def earlier(
        self, path: str, step: Step[Any], dropped: Iterable[StepResult]
    ) -> tuple[StepResult | None, Reason | None]:
        """Return the result of a step that no longer counts, and why it does not.

        Args:
            path: the step.
            step: it, as it is yielded now.
            dropped: the results that a replay has let go so far.
        """
        old = self.superseded.get(path)
        if path in self.cut and (old is None or LEAVES_EARLIER.isdisjoint(self.cut[path][0].marks)):
            return self.cut[path]
        if old is not None:
            said = "its earlier result no longer counts: the run continued from before it"
            return old, Reason(ReasonKind.UPSTREAM, said)
        for each in dropped:
            if each.path == path:
                action = step.action
                if each.step_type == action.step_type and each.function == action.function_name:
                    return each, Reason(ReasonKind.UPSTREAM, "what it is nested in runs again")
                now = f"{action.step_type} {action.function_name}".rstrip()
                return each, Reason(ReasonKind.CODE, f"was {each.step_type} {each.function}, is {now}")
        return None, None


def final_error(workflow_id: str, latest: CheckpointData) -> RunFinalError | None:
    """Return the error of a resume of a run that failed for good; None for any other run.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.
    """
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
    *,
    inputs: Mapping[str, Any],
    options: RunOptions,
    verifying: ClaimChecker,
    store: StoreBase,
    max_crashes: int = MAX_CRASHES,
    drops_answers: bool | None = None,
) -> Resumption:
    """Read a record and compare it with the inputs and with the world.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        inputs: inputs given again, perhaps none.
        options: how the resume is to be done.
        verifying: checks the recorded claims.
        store: what the record came from, for what earlier attempts left behind.
        max_crashes: how often the run may die at one step, where its record does not say.
        drops_answers: whether approvals and signals must be given again; by default for imported runs that can continue.

    Raises:
        WorkflowChangedError: it is the record of another workflow.
        InputMismatchError: an input differs from the recorded one.
        InputError: an input is unknown.
        StepNotFoundError: the step to continue from is not in the record.
    """
    check_name(workflow, workflow_id, latest)
    bound = rebind_recorded(workflow, latest, inputs)
    view: HistoryView = as_view(latest.step_results)
    superseded = Superseded(latest.metadata)
    policy = _located(options.policy, workflow_id, latest, superseded)
    _refuse_needless(policy, workflow_id, latest, superseded)
    cut, history, undone = _parted(latest, view, policy, drops_answers=drops_answers)
    if cut:
        still_done = (result for result, reason in cut.values() if reason.kind is not ReasonKind.UNDONE)
        superseded.add(still_done, holds_undoable=not policy.reruns_what_follows)
    spare: Mapping[str, StepResult] = {}
    if policy.reuse is ReuseMode.INPUTS and REUSABLE in latest.metadata:
        spare = await _spare(store, workflow_id, latest, {*(result.path for result in history.results), *cut})
    counts = [each for each in (*history.notable(), *spare.values()) if each.path not in undone]
    reports = await verifying.reports_of(counts)

    def is_same_code() -> bool:
        return bool(latest.fingerprint) and latest.fingerprint == step_fingerprint(workflow.function)

    judge = Judge(policy, reports, bound.known_secrets(), latest.attempt, is_same_code, history.results)
    if policy.on_package_change is not OnStale.REUSE:
        judge.packages.update(moved_versions(latest.metadata))
    begun = await _interrupted_steps(store, workflow_id, latest)
    crash_loop = await crash_loop_before(store, workflow_id, latest, options, max_crashes=max_crashes)
    found = history, judge, cut, superseded, frozenset(latest.in_flight), spare, begun, crash_loop
    marks = (each.marks for each in (*history.notable(), *superseded.results) if each.marks)
    is_guarded = not all(map(GUARDED.isdisjoint, marks))
    final = None if options.from_step else final_error(workflow_id, latest)
    return Resumption(latest, bound, *found, await _messages(store, workflow_id, latest), is_guarded, final, undone)


def _parted(
    latest: CheckpointData, view: HistoryView, policy: ResumePolicy, *, drops_answers: bool | None
) -> tuple[dict[str, tuple[StepResult, Reason]], History, frozenset[str]]:
    """Return the results that no longer count, the history of the others, and what was undone when a race stopped it."""
    undoing = [each for each in view.notable() if each.step_type == ROLLBACK]
    of_races = undone_in_races(view) if undoing else {}
    with_run = [each for each in undoing if step_of(each.path) not in of_races]
    cut = _cut(latest, view, policy, undone_paths(with_run) if with_run else (), drops_answers=drops_answers)
    for path in of_races.keys() & cut.keys():
        cut[path] = cut[path][0], Reason(ReasonKind.UNDONE, "it was undone, when a race stopped it")
    gone = {undo_path(path) for path in cut} | {each.path for each in with_run}
    undone = frozenset(undone_paths(undoing)) & of_races.keys() if of_races else frozenset[str]()
    return cut, kept_history(view, cut.keys() | gone), undone


async def _messages(store: StoreBase, workflow_id: str, latest: CheckpointData) -> Sequence[Signal]:
    """Return what was sent to a run that waits, and is not taken; for its plan."""
    if not waits_in(latest.metadata):
        return ()
    taken = {*latest.metadata.get(TAKEN, ()), *(result.signal for result in latest.step_results)}
    sent = sent_to(latest.metadata, await store.signals(workflow_id))
    return [message for message in sent if message.signal_id not in taken]


async def _interrupted_steps(store: StoreBase, workflow_id: str, latest: CheckpointData) -> frozenset[str]:
    """Return the steps of which the attempt that saved last left word that it began them, and recorded no end."""
    attempt, paths = await store.started_steps(workflow_id)
    if attempt != latest.attempt or not paths:
        return frozenset()
    return frozenset(paths) - as_view(latest.step_results).ended(paths)


async def _spare(
    store: StoreBase, workflow_id: str, latest: CheckpointData, taken: Collection[str]
) -> dict[str, StepResult]:
    """Return what earlier attempts left behind for reuse, when the one that was to reuse it died on the way."""
    taken = {*taken, *latest.in_flight, *latest.metadata.get(NOT_REUSABLE, ())}
    found: dict[str, StepResult] = {}
    if store.has(Ability.ATTEMPTS):
        for attempt in latest.metadata[REUSABLE]:
            data = await store.load_attempt(workflow_id, attempt)
            results = () if data is None else data.step_results
            kept = (each for each in results if each.success or is_stopped(each) or each.step_type == ROLLBACK)
            found.update({each.path: each for each in kept if each.path not in taken})
    if latest.metadata.get(IMPORTED) is True:
        return {path: result for path, result in found.items() if not is_answer(result)}
    return found


def with_reusable(metadata: Mapping[str, Any], attempt: int, dropped: Collection[str]) -> dict[str, Any]:
    """Return metadata that say that an attempt left results behind that may be reused, and which may not.

    Args:
        metadata: the metadata of the run.
        attempt: the attempt.
        dropped: the paths of the results that are run again, because they are stale or because somebody asked for it.
    """
    return {
        **metadata,
        REUSABLE: sorted({*metadata.get(REUSABLE, ()), attempt}),
        NOT_REUSABLE: sorted({*metadata.get(NOT_REUSABLE, ()), *dropped}),
    }


def accepted(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an imported run that a person has resumed.

    What earlier attempts left for reuse in a file that was not authenticated is not reused.
    """
    kept = without_reusable(metadata) if metadata[IMPORTED] is True else metadata
    return {name: value for name, value in kept.items() if name != IMPORTED}


def without_reusable(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a run that has found all its results.

    Args:
        metadata: the metadata of the run.
    """
    if REUSABLE not in metadata:
        return metadata
    return {name: value for name, value in metadata.items() if name not in (REUSABLE, NOT_REUSABLE)}


def kept_history(view: HistoryView, gone: Collection[str]) -> History:
    """Return the history of those results that still count.

    Args:
        view: the recorded results.
        gone: the paths of those that do not.
    """
    if not gone:
        length = len(view)
    else:
        length = next((index for index, result in enumerate(view) if result.path in gone), len(view))
    if length == len(view.history.results):
        return view.history
    kept = view.history.forked(length)
    for result in view[length:]:
        if result.path not in gone:
            append_result(kept, result)
    return kept


def _cut(
    latest: CheckpointData,
    view: HistoryView,
    policy: ResumePolicy,
    undone: Collection[str],
    *,
    drops_answers: bool | None,
) -> dict[str, tuple[StepResult, Reason]]:
    """Return the results that do not count from the beginning, and why.

    A failed run continues before the step whose failure ended it, so that the step is executed again. A failure that
    the generator handled stays: it is part of what the run did.
    """
    cut: dict[str, tuple[StepResult, Reason]] = {}
    if drops_answers or (
        drops_answers is None and latest.metadata.get(IMPORTED) is True and latest.status is not Status.COMPLETED
    ):
        for result in filter(is_answer, view):
            reason = Reason(ReasonKind.EVIDENCE, "it was imported: the maker of the file may have made up the answer")
            _cut_from(cut, view, result.path, reason, takes_nested=False)
    if latest.status is Status.FAILED and latest.error is not None and latest.error.path:
        reason = Reason(ReasonKind.FAILED, "it failed, and that ended the run")
        direct = (path for path in failures_behind(view, latest.error.path) if handled_failure(view, path) is None)
        for path in direct:
            _cut_from(cut, view, path, reason, takes_nested=False)
    for path in sorted(undone):
        _cut_from(cut, view, path, Reason(ReasonKind.UNDONE, "it was undone, when the run failed"), takes_nested=False)
    for wait in waits_in(latest.metadata):
        if wait.voided and any(each.path == wait.path and wait.is_newer_than(each) for each in view):
            reason = Reason(ReasonKind.EVIDENCE, f"it is void: {wait.voided}")
            if (
                policy.decide((reason,)) is OnStale.RERUN
            ):  # whatever is there now: it is not approved that it comes back
                _cut_from(cut, view, wait.path, reason, takes_nested=False)
    if policy.reuse is ReuseMode.PREFIX and policy.from_path:
        reason = Reason(ReasonKind.FORCED, "everything is run again from this step on")
        _cut_from(cut, view, policy.from_path, reason, takes_nested=True)
    return cut


def is_answer(result: StepResult) -> bool:
    """Return whether a message of a person or a program ended a step: an approval, or a signal."""
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
    for result in results_behind(steps, path):
        cut.setdefault(result.path, (result, upstream))


def _located(policy: ResumePolicy, workflow_id: str, latest: CheckpointData, superseded: Superseded) -> ResumePolicy:
    """Find the step of `--from`: a path, or the name of a step, whose first use is meant."""
    wanted = policy.from_path
    if not wanted or wanted in latest.in_flight:
        return policy
    results = [*as_view(latest.step_results), *superseded.results]
    if any(result.path == wanted for result in results):
        return policy
    for result in results:
        if result.name == wanted:
            return attrs.evolve(policy, from_path=result.path)
    raise StepNotFoundError(workflow_id, wanted, known=[result.path for result in results])


def _refuse_needless(policy: ResumePolicy, workflow_id: str, latest: CheckpointData, superseded: Superseded) -> None:
    """Refuse a decision about a step that is not in doubt."""
    if not policy.settled:
        return
    asked = dict.fromkeys(latest.in_flight)
    found = (*as_view(latest.step_results), *superseded.results)
    asked.update({each.path: None for each in found if AT_MOST_ONCE in each.marks and not each.success})
    asked.update({each.path: None for each in superseded.results if AT_MOST_ONCE in each.marks})
    for path, settled in policy.settled.items():
        if path not in asked:
            option = "--done" if settled.is_done else "--not-done"
            known = f"in doubt: {', '.join(map(repr, asked))}" if asked else "no step of it is"
            raise InputError(
                f"{option} {path}: step {path!r} of run {workflow_id!r} is not in doubt; {known}",
                parameter=path,
                remedy="Leave the option out. To run a recorded step again, use --from.",
            )


def with_settled(metadata: Mapping[str, Any], policy: ResumePolicy, at: datetime) -> dict[str, Any]:
    """Return metadata that say what a person decided about steps in doubt, and when.

    Args:
        metadata: the metadata of the run.
        policy: what was asked for.
        at: the time.
    """
    made = [
        {"step": path, "done": each.is_done, "by": each.by, "comment": each.comment, "at": encode_time(at)}
        for path, each in policy.settled.items()
    ]
    return {**metadata, SETTLED: [*metadata.get(SETTLED, ()), *made]} if made else dict(metadata)


def check_name(workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
    """Refuse the record of another workflow.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        latest: a checkpoint of it.

    Raises:
        WorkflowChangedError: it is one of another workflow.
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
"""In the metadata of a run: the versions of the packages that its program used, by the first attempt that used them."""


def moved_versions(metadata: Mapping[str, Any]) -> dict[int, dict[str, str]]:
    """Return which packages have another version now than recorded, as `2.2.3 → 3.0.1`, by the attempt that used them.

    Args:
        metadata: the metadata of a run; empty where everything is as it was.
    """
    recorded: Mapping[str, Mapping[str, str]] = metadata.get(PACKAGES, {})
    if not recorded:
        return {}
    now = versions_of({name for versions in recorded.values() for name in versions})
    moved = {
        int(attempt): {
            name: f"{version} → {now.get(name, 'not installed')}"
            for name, version in versions.items()
            if now.get(name) != version
        }
        for attempt, versions in recorded.items()
    }
    return moved if any(moved.values()) else {}
