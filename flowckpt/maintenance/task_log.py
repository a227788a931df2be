"""The log of a task's steps: pure, built from its record and updated by its owner.

Each committed step names the one that it continues, so the steps that led to any checkpoint are a chain, even after a
rollback. A rollback moves the head; later steps stay in the log, and the task can be rolled forward to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.codec.tags import encode
from flowckpt.core.dsl.checks import MAX_NAME_LENGTH, path_of
from flowckpt.core.identity.inputs_hash import digest
from flowckpt.core.records import CheckpointData, LazyValue, PartialState, Reason, Status, StepResult
from flowckpt.core.records.listing import MANAGER, is_task
from flowckpt.core.records.result import decode_held
from flowckpt.core.system.ids import why_invalid_run_id
from flowckpt.errors import CheckpointNotFoundError, ForeignRecordError, SettingError, UnsupportedSchemaError
from flowckpt.evidence.checks.base import StepFacts
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import PackOutcome
from flowckpt.stores.base import StoreBase
from flowckpt.stores.queries import LaterCheck

# Validation of a manager's arguments, and the ids of tasks, steps and checkpoints.
#
# An id contains its task, so it works after a restart and in every store: `TASK@CHECKPOINT` for a checkpoint,
# `TASK@[SEQUENCE]PATH` for a begun step. The part after the last `@` is the id in the store.


def public_id(task_id: str, local_id: str) -> str:
    """Return the public id."""
    return f"{task_id}@{local_id}"


def split_id(public: object, setting: str) -> tuple[str, str]:
    """Return the task and the id in the store.

    Args:
        public: an id that a manager returned; for an id without a task, the task is empty.
        setting: the name of the argument, for errors.

    Raises:
        SettingError: it is not a text, or the id of a step lacks a task.
    """
    if setting == "step_id" and isinstance(public, str) and "@" not in public:
        raise SettingError(
            f"step_id is {public!r:.80}, and the id of a step is written TASK@STEP",
            setting=setting,
            remedy="Give the id that begin_step returned.",
        )
    if not isinstance(public, str):
        raise SettingError(
            f"{setting} is {public!r:.80} ({type(public).__name__}), not the text of an id",
            setting=setting,
            remedy="Give the id that the manager returned.",
        )
    task_id, _, local_id = public.rpartition("@")
    return task_id, local_id


def local_part(public: str, task_id: str) -> str:
    """Return the id in the store for an id of a known task."""
    return public[len(task_id) + 1 :]


def marker_id(path: str, sequence: int) -> str:
    """Return the id in the store of a step's begin record."""
    return f"[{sequence}]{path}"


def sequence_in_marker(local_id: str) -> int:
    """Return the sequence of a step's begin record; 0 if it was removed."""
    return int(local_id[1:].partition("]")[0])


def path_in_marker(local_id: str) -> str:
    """Return the path of a begun step from the id of its record."""
    return local_id.partition("]")[2]


def check_text(value: object, setting: str) -> str:
    """Return a valid task id or checkpoint type, else raise.

    Raises:
        SettingError: it is not a text, or blank, or too long.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME_LENGTH:
        raise SettingError(
            f"{setting} must be text, not blank, and of at most {MAX_NAME_LENGTH} characters, not {value!r:.80} "
            f"({type(value).__name__})",
            setting=setting,
            remedy="Give a short name.",
        )
    return value


def check_task_id(value: object) -> str:
    """Return a valid task id, else raise: a task is stored like a run, and the rules for run ids apply.

    Raises:
        SettingError: it cannot be a run id.
    """
    if why := why_invalid_run_id(value):
        raise SettingError(f"the id of a task {why}", setting="task_id", remedy="Give another id.")
    return str(value)


def check_checkpoint_id(value: object) -> str:
    """Return a valid checkpoint id chosen by the program, else raise.

    Raises:
        SettingError: it could be mistaken for an id that the manager makes.
    """
    chosen = check_text(value, "checkpoint_id")
    if "@" in chosen or "[" in chosen:
        raise SettingError(
            f"the checkpoint id {chosen!r:.80} has an '@' or a '[', which have a meaning in ids",
            setting="checkpoint_id",
            remedy="Choose an id without them.",
        )
    return chosen


def check_plan(value: object) -> tuple[str, ...]:
    """Return valid names of planned steps, else raise.

    Raises:
        SettingError: it is not a list of names.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingError(
            f"a plan is a list of names, not {value!r:.80} ({type(value).__name__})",
            setting="steps",
            remedy="Write a list.",
        )
    return tuple(check_text(step, "steps") for step in value)


# States of older programs. A state records how many migrations its program knew; a newer program runs the others.

Migrations = Sequence[Callable[[Any], Any]]


@attrs.frozen(eq=False)
class _MigratedState(LazyValue):
    held: Any
    migrations: Migrations

    def value(self) -> Any:
        state = decode_held(self.held)
        for migrate in self.migrations:
            state = migrate(state)
        return state


def migrate_state(held: Any, version: int, migrations: Migrations) -> Any:
    """Return a state in the form of this program; it is migrated at each access.

    Args:
        held: the recorded state.
        version: the number of migrations that the recording program knew.
        migrations: the migrations of this program.

    Raises:
        UnsupportedSchemaError: a newer program recorded it.
    """
    if version > len(migrations):
        raise UnsupportedSchemaError(
            found=version,
            supported=len(migrations),
            what="state",
            detail="a newer program recorded it, with a migration that is not in migrations=[…]",
            remedy="Upgrade the program.",
        )
    return held if version == len(migrations) else _MigratedState(held, migrations[version:])


# The public views of a task: begun steps, committed steps, and the point from which to continue.


@attrs.frozen
class StartedStep:
    """A step that was begun and not committed: running now, or in doubt after a crash.

    Attributes:
        step_id: the id for `commit_step` and `abandon_step`.
        task_id: the task.
        path: its place in the task.
        checkpoint_type: the kind of step.
        work_item_id: the piece of work, or None.
        metadata: the program's notes.
        begun_at: when it was begun, aware and in UTC.
        attempt: the attempt of the task that began it.
        began_ns: the monotonic clock at its start, in nanoseconds; None if another process began it.
        snapshot_version: how many migrations the program that recorded the state knew.
        files: the files that are kept with the state, by path.
    """

    step_id: str
    task_id: str
    path: str
    checkpoint_type: str
    work_item_id: str | None
    metadata: Mapping[str, Any]
    begun_at: datetime
    attempt: int
    _snapshot: Any = attrs.field(default=None, eq=decode_held, repr=False, alias="snapshot")
    began_ns: int | None = attrs.field(default=None, eq=False, repr=False)
    snapshot_version: int = 0
    files: Mapping[str, PartialState] = attrs.field(factory=dict, repr=False)

    @property
    def held_snapshot(self) -> Any:
        """The snapshot as the record holds it, encoded."""
        return self._snapshot

    @property
    def snapshot(self) -> Any:
        """The state at the start of the step; a fresh value at each access."""
        return decode_held(self._snapshot)


@attrs.frozen
class CommittedStep:
    """A committed step.

    Attributes:
        id: its checkpoint's id, including the task: `TASK@CHECKPOINT`.
        task_id: the task.
        step_id: the id from `begin_step`.
        path: its place in the task.
        checkpoint_type: the kind of step.
        work_item_id: the piece of work, or None.
        metadata: the program's notes.
        sequence: its checkpoint's place in the task, increasing.
        begun_at: when it was begun, aware and in UTC.
        saved_at: when it was committed, aware and in UTC.
        duration_ms: how long it took; 0 if another process began it.
        after: the index of the committed step that it continues; -1 for none.
        later: the newest `verify_checkpoint` of it; None if there was none.
        snapshot_version: how many migrations the program that recorded its state knew.
    """

    id: str
    task_id: str
    step_id: str
    path: str
    checkpoint_type: str
    work_item_id: str | None
    metadata: Mapping[str, Any]
    sequence: int
    begun_at: datetime
    saved_at: datetime
    duration_ms: float
    after: int = attrs.field(repr=False)
    _evidence: Mapping[str, Any] | None = attrs.field(repr=False, alias="evidence")
    later: LaterCheck | None = attrs.field(default=None, repr=False)
    snapshot_version: int = 0

    @property
    def outcome(self) -> PackOutcome | None:
        """The outcome of its evidence at the commit; None if it was not checked."""
        if self._evidence is None:
            return PackOutcome.NO_EVIDENCE
        outcome = self._evidence.get("outcome")
        return None if outcome is None else PackOutcome(outcome)

    @property
    def verified(self) -> bool:
        """Whether its evidence held at the commit. `verify_checkpoint` checks what holds now."""
        return self.outcome is PackOutcome.VERIFIED

    @property
    def last_verified_at(self) -> datetime | None:
        """When its evidence was last found to hold, at the commit or by `verify_checkpoint`; None if never."""
        if self.later is not None and self.later.held_at is not None:
            return self.later.held_at
        return self.saved_at if self.verified else None

    def verification_summary(self) -> dict[str, Any]:
        """Return what the newest check of its evidence found, at the commit or by `verify_checkpoint`.

        The keys are `total`, `verified` and `failed` (numbers of claims), `success_rate` (0 to 1, or None without a
        check), `all_passed`, `last_checked_at` and `last_verified_at`.
        """
        if self.later is not None:
            counts, checked_at = self.later.counts, self.later.at
        else:
            verdicts = (self._evidence or {}).get("verdicts", ())
            statuses = Counter(str(each.get("status")) for each in verdicts)
            counts = {"total": len(verdicts), "verified": statuses["verified"], "failed": statuses["failed"]}
            checked_at = self.saved_at
        total = counts["total"]
        return {
            **counts,
            "success_rate": counts["verified"] / total if total else None,
            "all_passed": total > 0 and counts["verified"] == total,
            "last_checked_at": checked_at if total else None,
            "last_verified_at": self.last_verified_at,
        }

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command that it ran; None if it ran none."""
        code = (self._evidence or {}).get("exit_code")
        return code if type(code) is int else None

    @property
    def facts(self) -> StepFacts:
        """The recorded facts about its end, for a check of its claims."""
        return StepFacts.from_record(self._evidence or {})

    @property
    def has_claims(self) -> bool:
        """Whether it has claims."""
        return bool(self._evidence and self._evidence["pack"]["evidence"])

    @property
    def evidence_pack(self) -> EvidencePack:
        """Its claims with the facts of the commit; may be empty."""
        return EvidencePack([]) if self._evidence is None else EvidencePack.from_document(self._evidence["pack"])


@attrs.frozen
class TaskCheckpoint(CommittedStep):
    """A committed step with its state."""

    @classmethod
    def of(cls, step: CommittedStep, snapshot: Any) -> TaskCheckpoint:
        """Return a step with its recorded state."""
        return cls(*(getattr(step, field.name) for field in attrs.fields(CommittedStep)), snapshot=snapshot)

    _snapshot: Any = attrs.field(default=None, eq=decode_held, repr=False, alias="snapshot", kw_only=True)

    @property
    def snapshot(self) -> Any:
        """The state; a fresh value at each access."""
        return decode_held(self._snapshot)


@attrs.frozen
class RestoredTask:
    """The point from which to continue a task.

    Attributes:
        task_id: the task.
        checkpoint: the newest checkpoint that counts; None if no step was committed.
        completed: the committed steps up to there, oldest first.
        remaining: the planned steps that are not completed; None without a plan.
        in_doubt: the steps that were begun and not committed, oldest first.
        is_finished: whether the task was finished.
    """

    task_id: str
    checkpoint: TaskCheckpoint | None
    completed: tuple[CommittedStep, ...]
    remaining: tuple[str, ...] | None
    in_doubt: tuple[StartedStep, ...]
    is_finished: bool = False

    @property
    def snapshot(self) -> Any:
        """The state to continue with; None if no step was committed."""
        return None if self.checkpoint is None else self.checkpoint.snapshot


@attrs.define
class TaskLog:
    """The steps of a task.

    Attributes:
        task_id: the task.
        committed: all committed steps, in their order.
        live: the checkpoints that the store holds: the id there, to the index of the step.
        begun: the steps that were begun and not committed: the id in the store, to the step.
        obsolete_begins: the ids in the store of begin records that are no longer needed.
        plan: the planned steps, or None.
        head: the index of the last step that counts; -1 for none.
        base_path: the recorded base of relative paths in evidence; empty if not given.
        is_finished: whether the task was finished.
    """

    task_id: str
    committed: list[CommittedStep] = attrs.field(factory=list)
    live: dict[str, int] = attrs.field(factory=dict)
    begun: dict[str, StartedStep] = attrs.field(factory=dict)
    obsolete_begins: list[str] = attrs.field(factory=list)
    plan: tuple[str, ...] | None = None
    head: int = -1
    base_path: str = ""
    is_finished: bool = False
    _uses: Counter[str] | None = None

    # --- the state of the task ---------------------------------------------------------------------------------------

    def chain(self, index: int) -> list[CommittedStep]:
        """Return the steps that led to one, including it, oldest first.

        Args:
            index: the step; -1 for the start.
        """
        return [self.committed[each] for each in self._walk_back(index)][::-1]

    def _walk_back(self, index: int) -> Iterator[int]:
        """Yield the index of a step, and those of the steps that led to it."""
        while index >= 0:
            yield index
            index = self.committed[index].after

    def find_current(self) -> int:
        """Return the index of the newest step up to the head whose checkpoint the store holds; -1 for none."""
        return next(filter(self.is_live, self._walk_back(self.head)), -1)

    def is_live(self, index: int) -> bool:
        """Return whether the store holds the checkpoint of a step."""
        return self.live.get(local_part(self.committed[index].id, self.task_id)) == index

    def live_steps(self) -> list[CommittedStep]:
        """Return the steps whose checkpoints the store holds, newest first."""
        return [self.committed[index] for index in sorted(self.live.values(), reverse=True)]

    def live_chain(self, index: int) -> list[CommittedStep]:
        """Return the stored steps that led to one, including it, newest first.

        Args:
            index: the step; -1 for the start.
        """
        live = set(self.live.values())
        return [self.committed[each] for each in self._walk_back(index) if each in live]

    def remaining(self, index: int) -> tuple[str, ...] | None:
        """Return the planned steps that did not lead to one; None if there is no plan.

        A step completes the planned name equal to its work item, or to its type if the work item is missing or not planned.

        Args:
            index: the step; -1 for the start.
        """
        if self.plan is None:
            return None
        planned = Counter(self.plan)
        done: Counter[str] = Counter()
        for step in self.chain(index):
            names = (step.work_item_id, step.checkpoint_type)
            name = next((name for name in names if name is not None and planned[name] > done[name]), None)
            if name is not None:
                done[name] += 1
        left = []
        for name in self.plan:
            if done[name]:
                done[name] -= 1
            else:
                left.append(name)
        return tuple(left)

    def in_doubt(self) -> tuple[StartedStep, ...]:
        """Return the steps that were begun and not committed, oldest first."""
        return tuple(self.begun.values())

    # --- the record --------------------------------------------------------------------------------------------

    def metadata(self, *, plan: tuple[str, ...] | None = None, head: int | None = None) -> dict[str, Any]:
        """Return the metadata of every record of the task.

        Args:
            plan: a new plan; unchanged by default.
            head: a new head; unchanged by default. May be the index of the next step.
        """
        plan = self.plan if plan is None else plan
        head = self.head if head is None else head
        manager: dict[str, Any] = {}
        if plan is not None:
            manager["plan"] = list(plan)
        if head < len(self.committed) - 1:
            manager["head"] = head
        return {"base_path": self.base_path, "manager": manager}

    def new_path(self, checkpoint_type: str, gone: Sequence[str] = ()) -> str:
        """Return the path of the next step of a type, unique within the log.

        Args:
            checkpoint_type: the type.
            gone: the begun steps that it replaces, by their ids in the store.
        """
        if self._uses is None:
            self._uses = Counter(step.checkpoint_type for step in self.committed)
        taken = {step.path for step in self.without_begun(gone).values()}
        while True:
            path = path_of(checkpoint_type, self._uses[checkpoint_type])
            self._uses[checkpoint_type] += 1
            if path not in taken:
                return path

    def find_superseded(self, checkpoint_type: str, work_item_id: str | None, attempt: int) -> list[str]:
        """Return the begun steps that a new one replaces: the same work, begun by an earlier attempt."""
        return [
            local_id
            for local_id, step in self.begun.items()
            if step.attempt < attempt and (step.checkpoint_type, step.work_item_id) == (checkpoint_type, work_item_id)
        ]

    def without_begun(self, gone: Sequence[str]) -> dict[str, StartedStep]:
        """Return the begun steps except some."""
        return {local_id: step for local_id, step in self.begun.items() if local_id not in gone}

    def add(self, step: CommittedStep) -> None:
        """Add a committed step, which becomes the head."""
        local_id = local_part(step.id, self.task_id)
        self.committed.append(step)
        self.head = self.live[local_id] = len(self.committed) - 1
        self.begun.pop(local_part(step.step_id, self.task_id), None)

    def find_committed(self, local_step_id: str) -> CommittedStep | None:
        """Return the committed step for a begun one, or None.

        Args:
            local_step_id: the id under which it was begun, in the store.
        """
        step_id = public_id(self.task_id, local_step_id)
        return next((step for step in reversed(self.committed) if step.step_id == step_id), None)

    # --- retention -------------------------------------------------------------------------------------------------

    def list_needed(self, verified: CommittedStep | None) -> list[CommittedStep]:
        """Return the checkpoints that are removed only on explicit request.

        They are the newest, the one at the head, and the newest verified one.

        Args:
            verified: the newest verified one, or None.
        """
        current = self.find_current()
        steps = [*self.live_steps()[:1], *([self.committed[current]] if current >= 0 else [])]
        return steps if verified is None else [*steps, verified]

    def needed_sequences(self) -> frozenset[int]:
        """Return the sequences of the records that the task depends on: those checkpoints, and the steps in doubt.

        Plan and head are in every record, and so in the newest.
        """
        steps = self.live_steps()
        verified = next((step for step in steps if step.verified), None)
        if verified is None:  # if none was checked, the newest that might hold
            verified = next((step for step in steps if step.has_claims and step.outcome is None), None)
        begun = map(sequence_in_marker, self.begun)
        return frozenset([*(step.sequence for step in self.list_needed(verified)), *begun])

    def mark_begins_obsolete(self, local_ids: Iterable[str]) -> None:
        """Note that begun steps are no longer in doubt, without being committed."""
        self.obsolete_begins += (gone := list(local_ids))
        self.begun = self.without_begun(gone)

    def list_surplus(self, most: int, verified: CommittedStep | None) -> list[CommittedStep]:
        """Return the surplus checkpoints, oldest first.

        Needed checkpoints are never included.

        Args:
            most: how many may stay.
            verified: the newest verified one, or None.
        """
        steps = self.live_steps()
        kept_ids = {step.id for step in self.list_needed(verified)}
        for step in steps:
            if len(kept_ids) >= most:
                break
            kept_ids.add(step.id)
        return [step for step in reversed(steps) if step.id not in kept_ids]


# The stored form of a task: a run with a result for each committed step, which is read back as a log.
#
# A begin record has the reason `in_doubt`, the state before the step, and as its output a description of the
# step (metadata would do, but is carried from record to record); one that it was committed has the reason `step` and the
# state after it. The result of a step says what a later reader needs to
# know without loading its checkpoint.


NO_INPUTS = digest(encode({}))
_STEP_TYPE = "loop"


def make_commit_result(step: CommittedStep, local_id: str, *, index: int, attempt: int, evidence: Any) -> StepResult:
    """Return the history entry of a committed step.

    Args:
        step: the step.
        local_id: its checkpoint's id in the store.
        index: its place among the committed steps.
        attempt: the attempt that commits it.
        evidence: its claims and their answers, as recorded.
    """
    output: dict[str, Any] = {"sequence": step.sequence, "step_id": local_part(step.step_id, step.task_id)}
    output["saved_at"] = step.saved_at
    if local_id != step.path:
        output["checkpoint_id"] = local_id
    if step.work_item_id is not None:
        output["work_item_id"] = step.work_item_id
    if step.metadata:
        output["metadata"] = dict(step.metadata)
    if step.snapshot_version:
        output["snapshot_version"] = step.snapshot_version
    if step.after != index - 1:
        output["after"] = step.after
    return StepResult(
        step.checkpoint_type,
        _STEP_TYPE,
        output=output,
        duration_ms=step.duration_ms,
        path=step.path,
        started_at=step.begun_at,
        attempt=attempt,
        evidence=evidence,
    )


def _read_committed_step(task_id: str, index: int, result: StepResult) -> CommittedStep:
    output = result.output
    return CommittedStep(
        public_id(task_id, output.get("checkpoint_id", result.path)),
        task_id,
        public_id(task_id, output["step_id"]),
        result.path,
        result.name,
        output.get("work_item_id"),
        output.get("metadata", {}),
        output["sequence"],
        result.started_at or output["saved_at"],
        output["saved_at"],
        result.duration_ms,
        output.get("after", index - 1),
        result.evidence,
        snapshot_version=output.get("snapshot_version", 0),
    )


def describe_begin(step: StartedStep) -> dict[str, Any]:
    """Return the description of a step from its begin record."""
    version = {"snapshot_version": step.snapshot_version} if step.snapshot_version else {}
    return {
        **version,
        "checkpoint_type": step.checkpoint_type,
        "work_item_id": step.work_item_id,
        "metadata": dict(step.metadata),
    }


async def read_log(store: StoreBase, task_id: str, latest: CheckpointData | None) -> TaskLog:
    """Read the log of a task.

    Args:
        store: the store of the task.
        task_id: the task.
        latest: its newest checkpoint; None for a task that has none.

    Raises:
        ForeignRecordError: it is a run of the engine.
        FlowckptError: one of the store's errors.
    """
    log = TaskLog(task_id)
    if latest is None:
        return log
    if not is_task(latest):
        raise ForeignRecordError(
            f"run {task_id!r} is one of workflow {latest.workflow_name!r}, not a task of a CheckpointManager",
            workflow_id=task_id,
            found=latest.workflow_name,
            remedy="Choose another task id, or another store.",
        )
    log.committed = [_read_committed_step(task_id, index, result) for index, result in enumerate(latest.step_results)]
    manager = latest.metadata[MANAGER]
    log.head = manager.get("head", len(log.committed) - 1)
    log.plan = tuple(manager["plan"]) if "plan" in manager else None
    log.base_path = latest.metadata.get("base_path", "")
    log.is_finished = latest.status is Status.COMPLETED
    references = await store.list_checkpoints(task_id)
    saved = {reference.sequence for reference in references if reference.reason is Reason.STEP}
    # By sequence, and the newest of an id: another of the same id may be gone, and this one be the one that is loaded.
    log.live = {local_part(step.id, task_id): i for i, step in enumerate(log.committed) if step.sequence in saved}
    markers = [reference.checkpoint_id for reference in references if reference.reason is Reason.IN_DOUBT]
    for path in latest.in_flight:
        local_id = next((each for each in markers if path_in_marker(each) == path), marker_id(path, 0))
        log.begun[local_id] = await _read_begun_step(store, task_id, local_id, path, latest)
    live = {local_part(step.step_id, task_id) for step in log.live_steps()}
    log.mark_begins_obsolete(each for each in reversed(markers) if each not in log.begun and each not in live)
    return log


async def _read_begun_step(
    store: StoreBase, task_id: str, local_id: str, path: str, latest: CheckpointData
) -> StartedStep:
    try:
        data = await store.load(task_id, local_id)
    except CheckpointNotFoundError:  # the record was deleted, but the step is still in doubt
        data = latest
    description = (data.output or {}) if data.checkpoint_id == local_id else {}
    return StartedStep(
        public_id(task_id, local_id),
        task_id,
        path,
        description.get("checkpoint_type", path),
        description.get("work_item_id"),
        description.get("metadata", {}),
        data.saved_at,
        data.attempt,
        data.held_snapshot if description else None,
        snapshot_version=description.get("snapshot_version", 0),
        files=data.partial if description else {},
    )
