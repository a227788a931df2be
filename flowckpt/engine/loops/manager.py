"""The manager's public methods: start a step, commit it, continue a task."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs

from flowckpt.core.codec.blob import Recorded
from flowckpt.core.codec.tags import encode
from flowckpt.core.dsl.command import command_action
from flowckpt.core.records import Reason
from flowckpt.core.records.outputs import CommandOutput
from flowckpt.core.records.result import decode_held
from flowckpt.core.system.blocking import finish_despite_cancel, run_blocking
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.numbers import check_number, is_finite_number, pluralize
from flowckpt.core.system.secret import Secret
from flowckpt.engine.loops.claims import Files, TaskClaims, capture, find_roots, restore_files
from flowckpt.engine.loops.task import OwnedTask, Tasks, begin, commit, encode_state, find_begun
from flowckpt.engine.values.options import check_functions, check_ports
from flowckpt.errors import CheckpointNotFoundError, EvidenceNotVerifiedError, SettingError, StepNotStartedError
from flowckpt.evidence.claims import Evidence, EvidencePack
from flowckpt.evidence.report import VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.command import run_command
from flowckpt.execution.interrupts import Interrupts
from flowckpt.maintenance import task_log
from flowckpt.maintenance.task_log import (
    CommittedStep,
    RestoredTask,
    StartedStep,
    TaskCheckpoint,
    TaskLog,
    local_part,
    migrate_state,
)
from flowckpt.stores.adapted import adapt
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.queries import Verifications, note_verification, read_verifications

# Removal of checkpoints: a given one, and those above the limit.


_log = logging.getLogger("flowckpt")

S = TypeVar("S", bound=CommittedStep)


def refuse_undeletable(store: StoreBase, setting: str) -> None:
    """Refuse a store that cannot delete single checkpoints.

    Args:
        store: the store.
        setting: the argument that requires it.

    Raises:
        SettingError: the store cannot.
    """
    if not store.has(Ability.DELETE):
        raise SettingError(
            f"{store!r} cannot delete single checkpoints",
            setting=setting,
            remedy="Use a store that can, or keep all checkpoints (max_per_task=None) and delete whole tasks.",
        )


_AS_BEGUN: Any = object()


class CheckpointManager:
    """Checkpoints for plain loops: begin a step with a state, do the work, and commit it with evidence.

    A task is a run of the store. The manager owns a task from its first change until `release`, `finish_task`, `close`
    or the end of `async with`; reading needs no ownership. The methods are async; use `in_sync` from sync code.

    Args:
        store: where checkpoints are stored; `FileCheckpointStore()` by default, as for an engine. `max_per_task` and `delete_checkpoint` need a store that can delete single
            checkpoints.
        base_path: where relative paths of evidence start; by default the directory in which the task was started.
        auto_verify: whether evidence is checked at each commit and restore.
        max_per_task: how many checkpoints a task keeps, from 1; None for all. The newest, the one that the task
            continues from, and the newest verified one always stay.
        verifier: checks the evidence, instead of one for `base_path`.
        migrations: functions that bring an older state up to date, oldest first. A state is recorded with their number,
            so append one whenever the form of the state changes, and never remove one.
        clock: the time, for tests.

    Raises:
        SettingError: an argument is invalid, or the store cannot delete checkpoints.
    """

    def __init__(
        self,
        store: StoreBase | None = None,
        base_path: str | os.PathLike[str] | None = None,
        auto_verify: bool = True,
        max_per_task: int | None = None,
        *,
        verifier: EvidenceVerifier | None = None,
        migrations: Sequence[Callable[[Any], Any]] = (),
        clock: Clock | None = None,
    ) -> None:
        if verifier is not None and base_path is not None:
            message = f"base_path {os.fspath(base_path)!r} is given, and a verifier, which has its own base path"
            raise SettingError(message, setting="base_path", remedy="Give only one of the two.")
        self.store: StoreBase = FileCheckpointStore() if store is None else adapt(store, "store")
        remedy = "Give 1 or more: the newest checkpoint is never removed."
        self._most = check_number(max_per_task, "max_per_task", remedy, is_optional=True)
        if self._most is not None:
            refuse_undeletable(self.store, "max_per_task")
        check_ports(verifier, clock)
        self._clock: Clock = clock or SystemClock()
        self._migrations = check_functions("migrations", migrations, "that take a state and return its newer form")
        base = None if base_path is None else str(Path(base_path).absolute())
        self._claims = TaskClaims(verifier, base, self._clock, is_automatic=auto_verify)
        self._tasks = Tasks(self.store, self._clock, self._claims)
        # calls of maybe_commit since the last commit, and the time of that commit
        self._turns: dict[str, tuple[int, int]] = {}
        self._exit_codes: dict[str, int | None] = {}  # of the steps that this manager began and that have not ended

    def __repr__(self) -> str:
        return f"<CheckpointManager on {self.store!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    async def begin_step(
        self,
        task_id: str,
        checkpoint_type: str,
        snapshot: Any,
        work_item_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        files: Sequence[str | os.PathLike[str]] = (),
    ) -> str:
        """Record that a step starts. Until it is committed or abandoned, it is in doubt after a crash.

        It replaces a step in doubt of the same type and work item from an earlier attempt.

        Args:
            task_id: the task; created if it does not exist.
            checkpoint_type: the kind of step.
            snapshot: the state, of recordable types; later changes to it have no effect.
            work_item_id: the piece of work.
            metadata: notes of the program, of recordable types.
            files: files and directories below the base path that belong to the state: their contents are kept in the
                store, once per content, and `rollback_to_checkpoint` puts them back. They are read into memory.

        Returns:
            The step's id, for `commit_step`.

        Raises:
            SettingError: a name is blank or not text.
            EncodingError: the state or the notes cannot be recorded.
            RunLockedError: another process owns the task.
            ForeignRecordError: the task is a run of the engine.
            CheckpointStorageError: the store failed.
        """
        task_log.check_text(checkpoint_type, "checkpoint_type")
        if work_item_id is not None:
            task_log.check_text(work_item_id, "work_item_id")
        state = encode_state(snapshot)
        noted = Recorded(encode(dict(metadata or {}), "metadata")).value()
        async with self._tasks.own(task_id) as task:
            captured = await self._capture(task.log, files) if files else {}
            step = await begin(
                task,
                self._clock,
                checkpoint_type=checkpoint_type,
                work_item_id=work_item_id,
                metadata=noted,
                snapshot=state,
                version=len(self._migrations),
                files=captured,
            )
        self._exit_codes[step.step_id] = None
        return step.step_id

    async def _capture(self, log: TaskLog, files: Sequence[str | os.PathLike[str]]) -> Files:
        base = self._claims.find_files_base(log)
        return await run_blocking(lambda: capture(base, files))

    async def run_command(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        step_id: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | Secret[str] | None] | None = None,
        stdin: str | bytes | Secret[str] | Secret[bytes] | None = None,
        max_output: int = 1_000_000,
        timeout_seconds: float | None = None,
    ) -> CommandOutput:
        """Run a program for a begun step without a shell; `command_exit(…)` at the commit compares its exit code.

        The exit code does not raise an error: the evidence decides. A program that a cancel or the time limit ends is
        ended with every process that it started.

        Args:
            argv: the program and its arguments, as text or paths.
            step_id: the id from `begin_step`; by default the only step that this manager has begun and not ended.
            cwd: the working directory, relative to that of the process.
            env: variables to add to the environment; None removes one.
            stdin: what the program reads; nothing by default.
            max_output: the bytes kept of standard output and of standard error.
            timeout_seconds: the limit, above 0; None for none.

        Raises:
            SettingError: the step is not named, and not exactly one is begun.
            StepNotStartedError: the step was not begun by this manager, or has ended.
            StepDefinitionError: an argument of the program is invalid.
            CommandFailedError: the program cannot be started.
            StepTimeoutError: it did not end in time.
        """
        step_id = self._require_step(step_id)
        path = step_id.rpartition("@")[2]
        action = command_action(path, argv, cwd, env, stdin, max_output)
        output = await run_command(action, path=path, timeout_seconds=timeout_seconds, interrupts=Interrupts())
        self._exit_codes[step_id] = output.exit_code
        return output

    def _require_step(self, step_id: str | None) -> str:
        if step_id is None:
            if len(self._exit_codes) == 1:
                return next(iter(self._exit_codes))
            raise SettingError(
                f"a command belongs to a begun step, and this manager has begun {pluralize(len(self._exit_codes), 'step')}",
                setting="step_id",
                remedy="Pass step_id=…, the id that begin_step returned.",
            )
        if step_id not in self._exit_codes:
            task_id, _ = task_log.split_id(step_id, "step_id")
            raise StepNotStartedError(task_id, step_id, detail="this manager has not begun it, or it has ended")
        return step_id

    async def maybe_commit(
        self,
        task_id: str,
        snapshot: Any,
        evidence: EvidencePack | Evidence | None = None,
        *,
        every: int = 1,
        interval: float | None = None,
        checkpoint_type: str = "step",
        work_item_id: str | None = None,
    ) -> str | None:
        """Commit the state of a loop if a checkpoint is due: one line instead of a step that is begun and committed.

        Call it after each turn of the loop. `restore(task_id)` returns the last committed state.

        Args:
            task_id: the task; created if it does not exist.
            snapshot: the state after this turn, of recordable types.
            evidence: what is true of it.
            every: commit after this many calls.
            interval: commit also if the last commit of this manager is this many seconds old.
            checkpoint_type: the kind of step.
            work_item_id: the piece of work.

        Returns:
            The checkpoint's id, or None if none was due.

        Raises:
            SettingError: `every` is less than 1, `interval` is negative, or a name is blank.
            EvidenceNotVerifiedError: the evidence does not hold; nothing was saved.
            EncodingError: the state cannot be recorded.
            RunLockedError: another process owns the task.
            CheckpointStorageError: the store failed.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SettingError(f"every is {every!r}, not a number from 1", setting="every")
        if interval is not None and not (is_finite_number(interval) and interval >= 0):
            raise SettingError(f"interval is {interval!r}, not a number of seconds", setting="interval")
        calls, since = self._turns.get(task_id, (0, self._clock.elapsed_ns()))
        calls += 1
        self._turns[task_id] = calls, since
        if calls < every and (interval is None or self._clock.elapsed_ns() - since < interval * 1e9):
            return None
        pack = EvidencePack([evidence]) if isinstance(evidence, Evidence) else evidence
        step = await self.begin_step(task_id, checkpoint_type, snapshot, work_item_id)
        try:
            made = await self.commit_step(step, pack)
        except EvidenceNotVerifiedError:
            await self.abandon_step(step)
            raise
        self._turns[task_id] = 0, self._clock.elapsed_ns()
        return made

    async def commit_step(
        self,
        step_id: str,
        evidence_pack: EvidencePack | None,
        checkpoint_id: str | None = None,
        *,
        snapshot: Any = _AS_BEGUN,
    ) -> str:
        """Check a step's evidence and make the step durable. If its evidence does not hold, the step stays begun.

        Args:
            step_id: the id from `begin_step`, in this process or in one that died.
            evidence_pack: the step's claims; None or an empty pack claims nothing and is never verified.
            checkpoint_id: the checkpoint's id; loading an id returns its newest checkpoint.
            snapshot: the state after the step, with which files of the step are read again; by default the state and the
                files of `begin_step`.

        Returns:
            The checkpoint's id: `TASK@CHECKPOINT`.

        Raises:
            StepNotStartedError: the step was committed, abandoned, or never begun.
            EvidenceNotVerifiedError: the evidence does not hold; nothing was saved.
            SettingError: the checkpoint's id is blank or contains `@` or `[`.
            EncodingError: the state cannot be recorded.
            RunLockedError: another process owns the task.
            FencedError: another process has taken it over.
            CheckpointStorageError: the store failed.
        """
        task_id, local_step_id = task_log.split_id(step_id, "step_id")
        chosen = None if checkpoint_id is None else task_log.check_checkpoint_id(checkpoint_id)
        state = None if snapshot is _AS_BEGUN else encode_state(snapshot)
        async with self._tasks.own(task_id) as task:
            log = task.log
            step = find_begun(log, step_id, local_step_id)
        # Not under the lock: checks may take long, and other steps of the task continue meanwhile.
        exit_code = self._exit_codes.get(step_id)
        evidence = await self._claims.commit_claims(
            log, evidence_pack, step.path, exit_code=exit_code, on_refusal=partial(self._note, task_id)
        )
        async with self._tasks.own(task_id) as task:
            step = find_begun(task.log, step_id, local_step_id)
            captured = (
                await self._capture(task.log, find_roots(step.files)) if state is not None and step.files else None
            )
            committed = await commit(
                task,
                self._clock,
                step,
                checkpoint_id=chosen,
                evidence=evidence,
                snapshot=state,
                version=len(self._migrations),
                files=captured,
            )
            if self._most is not None:
                await self._remove_surplus(task, self._most)
        self._exit_codes.pop(step_id, None)
        return committed.id

    async def abandon_step(self, step_id: str) -> None:
        """Record that a begun step will not be committed, so it is no longer in doubt.

        Args:
            step_id: the id from `begin_step`, in this process or in one that died.

        Raises:
            StepNotStartedError: the step was committed, abandoned, or never begun.
            RunLockedError: another process owns the task.
            CheckpointStorageError: the store failed.
        """
        task_id, local_id = task_log.split_id(step_id, "step_id")
        async with self._tasks.own(task_id) as task:
            find_begun(task.log, step_id, local_id)
            await task.save(Reason.MANUAL, "@abandoned", begun=task.log.without_begun([local_id]).values())
            task.log.mark_begins_obsolete([local_id])
        self._exit_codes.pop(step_id, None)

    async def in_doubt(self, task_id: str) -> tuple[StartedStep, ...]:
        """Return the steps that were begun and not committed, oldest first, including those of live processes.

        Args:
            task_id: the task; empty if it does not exist.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        log = await self._tasks.load_log(task_id)
        return () if log is None else self._list_in_doubt(log)

    # --- the plan of a task ------------------------------------------------------------------------------------------

    async def plan_steps(self, task_id: str, steps: Sequence[str]) -> None:
        """Record the steps of a task, so that `restore` can return the remaining ones. Repeating the plan changes nothing.

        A committed step completes the planned step named like its work item, or else its type.

        Args:
            task_id: the task; created if it does not exist.
            steps: the names in order; a repeated name is to be done repeatedly.

        Raises:
            SettingError: a name is blank or not text.
            RunLockedError: another process owns the task.
            CheckpointStorageError: the store failed.
        """
        plan = task_log.check_plan(steps)
        async with self._tasks.own(task_id) as task:
            log = task.log
            if log.plan != plan:
                metadata = log.metadata(plan=plan)
                await task.save(Reason.MANUAL, "@plan", begun=log.begun.values(), metadata=metadata)
                log.plan, log.is_finished = plan, False

    async def finish_task(self, task_id: str) -> None:
        """Record that a task is done, and release it; a list of runs shows it as completed.

        With `max_per_task`, it first removes the checkpoints that are too many.

        Raises:
            CheckpointNotFoundError: the task does not exist.
            RunLockedError: another process owns it.
            CheckpointStorageError: the store failed.
        """
        async with self._tasks.own(task_id) as task:
            if task.saves.sequence == 0:
                raise CheckpointNotFoundError(task_id)
            if self._most is not None:  # the process of the last commit may have died before it removed any
                await self._remove_surplus(task, self._most)
            await task.save(Reason.COMPLETED, "@completed", begun=task.log.begun.values())
            task.log.is_finished = True
            await self._tasks.give_up(task)

    # --- continuing a task -------------------------------------------------------------------------------------------

    async def restore(self, task_id: str) -> RestoredTask | None:
        """Return where to continue a task: after its newest checkpoint that counts.

        Returns:
            The state, the completed and remaining steps, and those in doubt; None if the task does not exist.

        Raises:
            StaleStepError: its evidence, or that of an earlier step, no longer holds (with `auto_verify`).
            CheckpointCorruptedError: its record is damaged.
            ForeignRecordError: it is a run of the engine.
        """
        log = await self._tasks.load_log(task_id)
        return None if log is None else await self._restore(log, log.find_current())

    async def restore_by_id(self, checkpoint_id: str) -> RestoredTask:
        """Return what `restore` would return after a checkpoint; changes nothing.

        Args:
            checkpoint_id: the id from `commit_step`.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            StaleStepError: its evidence, or that of an earlier step, no longer holds (with `auto_verify`).
            CheckpointCorruptedError: the record is damaged.
        """
        log, index = await self._tasks.find_checkpoint(checkpoint_id)
        return await self._restore(log, index)

    async def rollback_to_checkpoint(self, checkpoint_id: str) -> Any:
        """Check a checkpoint and all earlier ones again, continue from it, and return its state.

        Files that were kept with the state are put back first; if the rollback is refused, they are as before it.
        Later checkpoints stay in the list; you can also return to one of them. Begun steps are abandoned.

        Args:
            checkpoint_id: the id from `commit_step`.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            StaleStepError: its evidence, or that of an earlier step, does not hold or cannot be checked; nothing
                changed.
            RunLockedError: another process owns the task.
            CheckpointStorageError: the store failed.
        """
        found, index = await self._tasks.find_checkpoint(checkpoint_id)
        step = found.committed[index]
        async with self._tasks.own(step.task_id) as task:
            log = task.log
            if index >= len(log.committed) or log.committed[index] != step or not log.is_live(index):
                raise CheckpointNotFoundError(step.task_id, step.id)
            data = await self.store.load(step.task_id, local_part(step.id, step.task_id))
            snapshot = decode_held(migrate_state(data.held_snapshot, step.snapshot_version, self._migrations))
            async with self._restore_files(log, data.partial):
                await self._claims.refuse_stale(log, index)
                await task.save(Reason.MANUAL, "@rollback", begun=(), metadata=log.metadata(head=index))
            log.mark_begins_obsolete(log.begun)
            log.head, log.is_finished = index, False
        return snapshot

    async def _load(self, step: CommittedStep) -> TaskCheckpoint:
        data = await self.store.load(step.task_id, local_part(step.id, step.task_id))
        return TaskCheckpoint.of(step, migrate_state(data.held_snapshot, step.snapshot_version, self._migrations))

    async def _restore(self, log: TaskLog, index: int) -> RestoredTask:
        """Return the state after a committed step; -1 for the state at the start."""
        checkpoint = None
        if index >= 0:
            if self._claims.is_automatic:
                await self._claims.refuse_stale(log, index)
            checkpoint = await self._load(log.committed[index])
        begun, chain = self._list_in_doubt(log), tuple(log.chain(index))
        return RestoredTask(log.task_id, checkpoint, chain, log.remaining(index), begun, is_finished=log.is_finished)

    def _list_in_doubt(self, log: TaskLog) -> tuple[StartedStep, ...]:
        return tuple(
            attrs.evolve(step, snapshot=migrate_state(step.held_snapshot, step.snapshot_version, self._migrations))
            for step in log.in_doubt()
        )

    @asynccontextmanager
    async def _restore_files(self, log: TaskLog, files: Files) -> AsyncGenerator[None, None]:
        """Restore files, and reverse that if the block fails."""
        if not files:
            yield
            return
        base = self._claims.find_files_base(log)
        before = await run_blocking(lambda: capture(base, find_roots(files)))
        try:
            await run_blocking(lambda: restore_files(base, files))
            yield
        except BaseException:
            await finish_despite_cancel(run_blocking(lambda: restore_files(base, before)))
            raise

    # --- checkpoints -------------------------------------------------------------------------------------------------

    async def verify_checkpoint(self, checkpoint_id: str) -> VerificationReport:
        """Check the evidence of a checkpoint now; without evidence it is not verified. The answer is noted.

        Args:
            checkpoint_id: the id from `commit_step`.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
        """
        log, index = await self._tasks.find_checkpoint(checkpoint_id)
        report = await self._claims.check_step(log, log.committed[index])
        await self._note(log.task_id, report, log.committed[index].sequence)
        return report

    async def _note(self, task_id: str, report: VerificationReport, sequence: int = 0) -> None:
        verifications = Verifications.of(report.answers, self._clock.now(), sequence, is_verified=report.verified)
        await note_verification(self.store, self._clock, task_id, {}, verifications)

    async def _add_verifications(self, task_id: str, steps: Sequence[S]) -> list[S]:
        """Return steps with their newest verifications."""
        later = (await read_verifications(self.store, task_id, {})).checkpoints if steps else {}
        return [attrs.evolve(step, later=later.get(step.sequence)) for step in steps]

    async def get_last_verified_checkpoint(
        self, task_id: str, checkpoint_type: str | None = None
    ) -> TaskCheckpoint | None:
        """Return the newest checkpoint to continue from, or None.

        Its evidence, and that of all earlier checkpoints, holds now.

        Args:
            task_id: the task.
            checkpoint_type: the kind of step, or None for any.
        """
        log = await self._tasks.load_log(task_id)
        if log is None:
            return None
        newest = await self._claims.find_newest_valid(log, checkpoint_type)
        return None if newest is None else (await self._add_verifications(task_id, [await self._load(newest)]))[0]

    async def get_checkpoint(self, checkpoint_id: str) -> TaskCheckpoint:
        """Return a checkpoint with its state.

        Args:
            checkpoint_id: the id from `commit_step`; or your own id without the task, if only one task has it.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            CheckpointCorruptedError: its record is damaged.
        """
        log, index = await self._tasks.find_checkpoint(checkpoint_id)
        loaded = await self._load(log.committed[index])
        return (await self._add_verifications(log.task_id, [loaded]))[0]

    async def list_checkpoints(
        self, task_id: str, limit: int = 100, checkpoint_type: str | None = None, *, verified: bool | None = None
    ) -> list[CommittedStep]:
        """Return the checkpoints of a task without their states, newest first; none if the task does not exist.

        Args:
            task_id: the task.
            limit: at most this many.
            checkpoint_type: the kind of step, or None for any.
            verified: whether their own evidence held at the commit; None for any.

        Raises:
            SettingError: the limit is negative or not a whole number.
        """
        log = await self._tasks.load_log(task_id)
        most = check_number(limit, "limit", "Write limit=100.", least=0)
        steps = [] if log is None else [step for step in log.live_steps() if verified in (None, step.verified)]
        wanted = [step for step in steps if checkpoint_type in (None, step.checkpoint_type)][:most]
        return await self._add_verifications(task_id, wanted)

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint, and return whether it existed.

        Args:
            checkpoint_id: the id from `commit_step`.

        Raises:
            SettingError: the store cannot delete single checkpoints.
            RunLockedError: another process owns the task.
            CheckpointStorageError: the store failed.
        """
        refuse_undeletable(self.store, "store")
        try:
            log, index = await self._tasks.find_checkpoint(checkpoint_id)
        except CheckpointNotFoundError:
            return False
        step = log.committed[index]
        async with self._tasks.own(step.task_id) as task:
            return await self._remove(task, step)

    async def _remove(self, task: OwnedTask, step: CommittedStep) -> bool:
        """Remove a checkpoint and the record of its start; return whether there was one."""
        log = task.log
        # else the record of its start would be the newest, and the step in doubt again
        if step.sequence == task.saves.sequence:
            await task.save(Reason.MANUAL, "@deleting", begun=log.begun.values())
        is_removed = await self.store.delete_checkpoint(log.task_id, local_part(step.id, log.task_id))
        log.live.pop(local_part(step.id, log.task_id), None)
        await self.store.delete_checkpoint(log.task_id, local_part(step.step_id, log.task_id))
        return is_removed

    async def _remove_surplus(self, task: OwnedTask, most: int) -> None:
        """Remove the checkpoints above the limit, and the records of started steps that are no longer needed.

        A failure is only logged: the committed step is durable.
        """
        log = task.log
        if len(log.live) <= most and not log.obsolete_begins:
            return
        try:
            # including the states of steps that an earlier attempt started, and that were started again
            while log.obsolete_begins:
                await self.store.delete_checkpoint(log.task_id, log.obsolete_begins[0])
                del log.obsolete_begins[0]
            if len(log.live) <= most:
                return
            steps = log.live_steps()
            verified = next((step for step in steps if step.verified), None)
            if verified is None:
                verified = await self._claims.find_newest_verified(log, steps)
            for step in log.list_surplus(most, verified):
                await self._remove(task, step)
        except Exception as error:
            _log.warning("task %s keeps more than %d checkpoints: %s", log.task_id, most, error)

    async def delete_all(self, task_id: str) -> int:
        """Remove a task, and return how many checkpoints it had; 0 if it does not exist.

        Raises:
            ForeignRecordError: it is a run of the engine.
            RunLockedError: another process owns it.
            CheckpointStorageError: the store failed.
        """
        if await self._tasks.load_log(task_id) is None:
            return 0
        # take the lease first, so that no other process can save meanwhile
        async with self._tasks.own(task_id) as task:
            count = len(task.log.live)
            await self._tasks.give_up(task)
            await self.store.clear(task_id)
        return count

    # --- ownership ---------------------------------------------------------------------------------------------------

    async def release(self, task_id: str) -> None:
        """Release a task, so that another process can continue it; it need not be owned."""
        await self._tasks.release(task_id)

    async def close(self) -> None:
        """Release every task that this manager owns."""
        await self._tasks.release_all()
