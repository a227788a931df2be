"""A store with a mirror: a second store that gets each checkpoint of the first one.

The first store, the primary, is the truth. It alone has the claims and the messages of a run, and decides what is removed.
The mirror gets each checkpoint after the primary has it, in the order of the primary, and nothing is ever removed there.

The mirror of a run is *level* if it has the newest checkpoint of the primary. The attempts in the mirror are claims made
there. So a writer that lost the run is fenced there, too, and a mirror that was unavailable gets the missing checkpoints in
an attempt of its own. Attempt numbers may differ there; nothing else does. The mirror must hold an earlier state of the
primary's run: a mirror with another history is left unchanged, because it may be the last copy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.results import as_view
from flowckpt.core.records import CheckpointData, Reason
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.generation import MOST_RESUMES, generation_start, may_precede, number_of
from flowckpt.core.system.blocking import Workers, run_alone, start_thread
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.numbers import pluralize
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    MirrorError,
    RunLockedError,
    SettingError,
)
from flowckpt.maintenance.export import CheckpointCopier, WholeRun, read_whole_run
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.base import Ability, Finding, Lease, StoreBase
from flowckpt.stores.leases import release_lease

if TYPE_CHECKING:
    from flowckpt.core.records import HistoryView
    from flowckpt.core.records.listing import CheckpointRef
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.queries import Repaired

_log = logging.getLogger("flowckpt")

ON_ERROR = ("fail", "continue")
_MOST_PENDING = 1_000
"""With `continue`, the most checkpoints that wait in memory for the mirror; further ones are read from the primary."""
_PATIENCE_SECONDS = 2.0
"""With `continue`, how long a start waits for a mirror, and the end of a run for one that makes no progress."""
_MOST_LOOKS = 16
"""The number of new runs that check the mirror at the same time."""
_LONGEST_PAUSE_SECONDS = 60.0
_GONE = (CheckpointCorruptedError, CheckpointNotFoundError, KeyError)
"""The errors of a read while the next generation, or retention, removes a part of the run."""
_MARK = "mirrored"
"""In the metadata of a checkpoint of a mirror that came from the primary: its attempt in the mirror.

A process that resumes the run in the mirror carries the metadata over, and has another attempt.
"""


@attrs.define(eq=False)
class _MirroredRun:
    """A run that this process saves, in the mirror.

    Attributes:
        owner: the token of its lease in the primary.
        known: the highest known sequence that the run ever had in the primary.
        lease: the claim in the mirror, while the mirror is level.
        stands_for: the attempt of the primary that this claim stands for; 0 before its first checkpoint.
        newest: the newest checkpoint in the mirror, or None.
        copier: makes the checkpoints for the mirror.
        has_skipped: whether the mirror must read checkpoints from the primary because they did not fit in memory.
        one_at_a_time: keeps the checkpoints in order.
    """

    owner: str = ""
    known: int = 0
    lease: Lease | None = None
    stands_for: int = 0
    newest: CheckpointData | None = None
    copier: CheckpointCopier = attrs.field(factory=CheckpointCopier)
    has_skipped: bool = False
    one_at_a_time: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    _last: CheckpointData | None = None
    _last_marked: CheckpointData | None = None

    def mark(self, data: CheckpointData) -> CheckpointData:
        """Return a checkpoint with the mark; equal metadata stay one object, which a store writes once."""
        last, mark = self._last, self._last_marked
        if last is None or mark is None or last.metadata is not data.metadata or last.attempt != data.attempt:
            metadata: Mapping[str, Any] = {**data.metadata, _MARK: data.attempt}
        else:
            metadata = mark.metadata
        self._last, self._last_marked = data, attrs.evolve(data, metadata=metadata)
        return self._last_marked


class MirroredStore(StoreBase):
    """A store whose every save also goes to a second store, the mirror.

    All questions are answered by the primary, which alone has leases, messages, pins and the index of `.cache()`. The
    mirror gets the checkpoints. It catches up by itself at the next start, resume or save of a run, also if it was away
    or empty. `clear` removes a run from both; `prune` and the retention of checkpoints concern the primary alone.

    Args:
        primary: the store of the runs.
        mirror: the second store, of any kind. The settings refuse one in memory, which is lost with the process; here
            it is accepted for tests.
        on_error: `fail` saves to the mirror before a save is acknowledged, and a save that the mirror cannot take raises
            `MirrorError`. `continue` saves to it in the background: no step waits, a warning is logged once, and the
            mirror catches up once it can take checkpoints again. With both, a new run is refused whose id the mirror has;
            `continue` asks a mirror that does not answer for two seconds.
        clock: the time, for tests.

    Attributes:
        primary: the store of the runs.
        mirror: the second store.

    Raises:
        SettingError: the mirror is the same place as the primary, or is not protected by a key while the primary is; or
            `on_error` is unknown.
    """

    def __init__(
        self,
        primary: CheckpointStore,
        mirror: CheckpointStore,
        on_error: str = "fail",
        *,
        clock: Clock | None = None,
    ) -> None:
        self.primary, self.mirror = adapt(primary, "primary"), adapt(mirror, "mirror")
        if on_error not in ON_ERROR:
            raise SettingError(
                f"on_error must be 'fail' or 'continue', got {on_error!r:.80}",
                setting="on_error",
                remedy="See MirroredStore.",
            )
        if _is_same_place(self.primary, self.mirror):
            raise _same_place_error(self.mirror)
        if self.primary.keys is not None and self.mirror.keys is None:
            raise SettingError(
                f"the mirror {_format_store(self.mirror)} has no key, and the records of {_format_store(self.primary)} are protected by one",
                setting="mirror",
                remedy="Use a mirror of files with a key file: FileCheckpointStore(path, key_file=…).",
            )
        self.abilities = self.primary.abilities
        self.live_seconds = self.primary.live_seconds
        self._clock: Clock = clock or SystemClock()
        self._fails_with_mirror = on_error == "fail"
        self._runs: dict[str, _MirroredRun] = {}
        self._failed: set[str] = set()  # runs whose last save failed only in the mirror
        self._differing: set[str] = set()
        self._pause_seconds, self._retry_ns = 0.0, 0
        self._is_reported = False
        self._look_again_ns = 0  # until then, the mirror is known not to answer
        self._jobs, self._lookups = _JobQueue(), Workers(_MOST_LOOKS)
        for name in _ANSWERED_BY_THE_PRIMARY:
            setattr(self, name, getattr(self.primary, name))

    def __repr__(self) -> str:
        return f"MirroredStore({self.primary!r}, {self.mirror!r})"

    @property
    def keys(self) -> KeyRing | None:
        """The keys of the primary."""
        return self.primary.keys

    # --- saves ----------------------------------------------------------------------------------------------------

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Save in the primary, then in the mirror; see `CheckpointStore.save`.

        Raises:
            MirrorError: the checkpoint is in the primary, but not in the mirror.
        """
        self._failed.discard(workflow_id)
        await self.primary.save(workflow_id, data)
        await self._mirror(workflow_id, data)

    async def _mirror(self, workflow_id: str, data: CheckpointData | None = None) -> None:
        """Bring the mirror of a run level, now or later.

        Args:
            workflow_id: the run.
            data: the newest checkpoint of the primary; by default it is read.

        Raises:
            MirrorError: the mirror cannot take it, with `on_error="fail"`.
        """
        run = self._runs.setdefault(workflow_id, _MirroredRun())
        if not self._fails_with_mirror:
            if self._jobs.pending >= _MOST_PENDING:
                run.has_skipped = True
            elif not self._jobs.put(partial(self._try, workflow_id, run, data)):
                run.has_skipped = True
                self._report_once(
                    "no thread can be started to save to the mirror %s; it catches up at a later save or resume",
                    _format_store(self.mirror),
                )
            return
        try:
            await self._take(workflow_id, run, data)
        except Exception as error:
            self._failed.add(workflow_id)
            raise self._mirror_error(workflow_id, error) from error

    def _mirror_error(self, workflow_id: str, error: Exception) -> FlowckptError:
        """Return the error for a mirror that failed."""
        if isinstance(error, MirrorError | SettingError):
            return error
        detail = error.message if isinstance(error, FlowckptError) else f"{type(error).__name__}: {error}"
        mirror_error = MirrorError(
            workflow_id, store=_format_store(self.primary), mirror=_format_store(self.mirror), detail=detail
        )
        if isinstance(error, FlowckptError) and error.remedy:
            mirror_error.remedy = f"{error.remedy} {mirror_error.remedy}"
        return mirror_error

    async def _take(self, workflow_id: str, run: _MirroredRun, data: CheckpointData | None) -> None:
        async with run.one_at_a_time:
            lease, run.lease = run.lease, None  # until it is known to be level again
            if run.has_skipped:
                run.has_skipped, data = False, None
            elif lease is not None:
                try:
                    await self._append(run, lease, () if data is None else (data,))
                except FencedError:
                    pass  # another process has written there: read its current state
                except Exception:
                    if self._fails_with_mirror or data is None:
                        raise
                    data = None  # its large values may be gone from the primary, which has continued: read the primary's current state
                else:
                    return
            await self._bring_level(workflow_id, run, data)

    async def _append(self, run: _MirroredRun, lease: Lease, checkpoints: Iterable[CheckpointData]) -> None:
        """Save checkpoints in the mirror, each attempt of the primary with a claim of its own.

        A claim with a higher number than the attempt was made to catch up: it stands for the next attempt as well.
        """
        try:
            for data in checkpoints:
                if run.newest is not None and data.sequence <= run.newest.sequence:
                    continue
                is_other = run.stands_for not in (0, data.attempt)
                if is_other and (
                    data.attempt > lease.attempt or run.newest is None or not _continues(data, run.newest)
                ):
                    lease = await self.mirror.acquire(lease.workflow_id, take_over=True)
                run.stands_for = data.attempt
                copy = run.copier.of(data)
                await self.mirror.save(lease.workflow_id, run.mark(attrs.evolve(copy, attempt=lease.attempt)))
                run.newest = data
                self._jobs.progress += 1  # it may take long to catch up
        except BaseException:
            with suppress(FlowckptError):  # so that the run can be resumed in the mirror, or by a later save
                await release_lease(self.mirror, lease)
            raise
        run.lease = lease

    async def _bring_level(self, workflow_id: str, run: _MirroredRun, data: CheckpointData | None) -> None:
        """Claim the run in the mirror, and save the missing checkpoints there."""
        latest = data or await self.primary.load_latest(workflow_id)
        try:
            lease = await self.mirror.acquire(workflow_id)
        except RunLockedError:  # by the previous owner of the run, or by a process that resumed it in the mirror
            if run.newest is None:
                await self._refuse_same_place(workflow_id)
            await self._find_missing(workflow_id, await self.mirror.load_latest(workflow_id), latest, run.known)
            lease = await self.mirror.acquire(workflow_id, take_over=True)
        try:
            missing = await self._find_missing(workflow_id, lease.latest, latest, run.known)
            is_later = (
                lease.latest is not None and bool(missing) and _generation(missing[0]) > _generation(lease.latest)
            )
            if (is_later or (lease.latest is None and len(missing) > 1)) and self.mirror.has(Ability.RECEIVE):
                await release_lease(self.mirror, lease)
                if is_later:
                    await self.mirror.clear(workflow_id)  # of an earlier generation, which the primary has removed
                await self.mirror.receive_run(
                    workflow_id, WholeRun(workflow_id, [*map(run.mark, missing)]).copy_checkpoints
                )
                lease = await self.mirror.acquire(workflow_id)
            run.stands_for, run.copier = 0, CheckpointCopier()
            run.newest = lease.latest
            await self._append(run, lease, missing)
        except BaseException:
            with suppress(FlowckptError):
                await release_lease(self.mirror, lease)
            raise

    async def _find_missing(
        self, workflow_id: str, there: CheckpointData | None, latest: CheckpointData | None, known: int = 0
    ) -> Sequence[CheckpointData]:
        """Return the checkpoints that the mirror lacks, oldest first.

        Args:
            workflow_id: the run.
            there: the newest checkpoint of the mirror.
            latest: the newest one of the primary.
            known: the highest sequence that the primary ever had: what the mirror has up to there was removed from the primary.

        Raises:
            MirrorError: the mirror does not hold an earlier state of the run.
        """
        if there is not None and latest is not None and _is_same(there, latest):
            return ()
        checkpoints: Sequence[CheckpointData] = ()
        if latest is not None:
            is_whole = self.primary.has(Ability.ATTEMPTS)
            checkpoints = (await read_whole_run(self.primary, workflow_id)).checkpoints if is_whole else (latest,)
        if there is None:
            return checkpoints
        later = [data for data in checkpoints if data.sequence >= there.sequence]
        if later and _is_same(later[0], there):
            return later[1:]
        if later and later[0].sequence > there.sequence and _follows(later[0], there):
            return later
        if latest is not None and latest.sequence < there.sequence <= known and _continues(there, latest):
            return ()
        raise self._difference_error(workflow_id, there, latest)

    def _difference_error(self, workflow_id: str, there: CheckpointData, latest: CheckpointData | None) -> MirrorError:
        name, here, first = shell_word(workflow_id), "does not have the run", ""
        if latest is not None:
            here = f"has another history, up to {_describe_newest(latest)}"
            if _generation(latest) > _generation(there):
                here += f" (or it was resumed more than {MOST_RESUMES} times without its mirror)"
            first = f"'flowckpt store clear {name}', then "
        return MirrorError(
            workflow_id,
            store=_format_store(self.primary),
            mirror=_format_store(self.mirror),
            detail=f"it has the run up to {_describe_newest(there)}, and the store {here}; nothing was changed in the mirror",
            remedy=f"To use the run of the mirror: {first}'{_copy_back_command(name, self.mirror, self.primary)}'. To give it up: "
            f"'flowckpt store clear {name} --store {_format_option(self.mirror, 'MIRROR')}'. Or use another run id.",
            differs=True,
        )

    async def _refuse_same_place(self, workflow_id: str) -> None:
        """Refuse a mirror that holds the lease of the primary: one place under two names."""
        owner = await self.primary.owner(workflow_id)
        if (
            owner is not None
            and owner == await self.mirror.owner(workflow_id)
            and self.primary.kind == self.mirror.kind
        ):
            raise _same_place_error(self.mirror)

    # --- in the background ----------------------------------------------------------------------------------------

    async def _try(
        self, workflow_id: str, run: _MirroredRun, data: CheckpointData | None, *, is_last: bool = False
    ) -> None:
        """Bring the mirror level, unless it failed just before; report a failure once."""
        if workflow_id in self._differing or (self._clock.elapsed_ns() < self._retry_ns and not is_last):
            await self._release_mirror(run)
            return
        try:
            await self._take(workflow_id, run, data)
        except Exception as error:
            # the primary has continued; a later try reads again, or the last one
            if not is_last and isinstance(error, _GONE):
                _log.info("run %s changed while its mirror read it: %s", workflow_id, error)
            else:
                self._report(workflow_id, self._mirror_error(workflow_id, error))
            return
        if self._pause_seconds:
            _log.info("the mirror %s takes checkpoints again", _format_store(self.mirror))
        self._pause_seconds, self._retry_ns, self._look_again_ns, self._is_reported = 0.0, 0, 0, False

    def _report(self, workflow_id: str, error: FlowckptError) -> None:
        if isinstance(error, SettingError) or (isinstance(error, MirrorError) and error.differs):
            self._differing.add(workflow_id)
            _log.warning("%s The run continues without the mirror.", error)
            return
        self._report_once("%s; the run continues, and the mirror catches up at a later save or resume", error.message)
        self._pause_seconds = min(max(1.0, 2 * self._pause_seconds), _LONGEST_PAUSE_SECONDS)
        self._retry_ns = self._clock.elapsed_ns() + int(self._pause_seconds * 1e9)

    def _report_once(self, text: str, *words: object) -> None:
        """Log a warning, unless the mirror has taken nothing since the last one."""
        if not self._is_reported:
            self._is_reported = True
            _log.warning(text, *words)

    async def _finish(self, workflow_id: str, run: _MirroredRun) -> None:
        """Wait until the mirror is level, then release the run there."""

        async def finish() -> None:
            if run.lease is None or run.has_skipped:
                await self._try(workflow_id, run, None, is_last=True)
            await self._release_mirror(run)

        if not await self._jobs.done(finish):
            text = "the mirror %s has not taken the last checkpoints of run %s yet; it catches up at a later save or resume"
            self._report_once(text, _format_store(self.mirror), workflow_id)

    # --- owners ---------------------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Lease:
        """Become the owner of a run in the primary, and bring its mirror level; see `StoreBase.acquire`.

        Raises:
            MirrorError: the mirror cannot be brought level; the run was released.
        """
        lease = await self.primary.acquire(workflow_id, take_over=take_over)
        self._differing.discard(workflow_id)
        self._runs[workflow_id] = _MirroredRun(lease.token, lease.last_sequence)
        try:
            if lease.latest is None and not self._fails_with_mirror:
                await self._refuse_known(workflow_id)
            await self._mirror(workflow_id, lease.latest)
        except BaseException:
            self._runs.pop(workflow_id, None)
            await release_lease(self.primary, lease)
            raise
        return lease

    async def _refuse_known(self, workflow_id: str) -> None:
        """Refuse to start a run that the mirror has, if the mirror answers: the primary may have been lost.

        The check needs no order with the saves of other runs, and so does not wait for them.
        """
        if self._clock.elapsed_ns() < self._look_again_ns:
            return

        def read_latest() -> CheckpointData | None:
            # the first save reports what is wrong with the mirror
            with suppress(Exception), asyncio.Runner() as runner:
                return run_alone(runner, self.mirror.load_latest(workflow_id))
            return None

        try:
            answer = self._lookups.run(read_latest)
        except CheckpointStorageError:
            _log.warning("no thread can be started; run %s starts without checking its mirror", workflow_id)
            return
        await asyncio.wait({answer}, timeout=_PATIENCE_SECONDS)
        if not answer.done():
            if self._clock.elapsed_ns() >= self._look_again_ns:  # of runs that start together, only the first one warns
                text = "the mirror %s does not answer; run %s starts without checking it"
                _log.warning(text, _format_store(self.mirror), workflow_id)
            self._is_reported = True
            self._look_again_ns = self._clock.elapsed_ns() + int(_LONGEST_PAUSE_SECONDS * 1e9)
        elif (latest := answer.result()) is not None:
            raise self._difference_error(workflow_id, latest, None)

    async def begin_generation(self, workflow_id: str, *, token: str = "") -> Lease:
        """Claim the next attempt in the primary; see `StoreBase.begin_generation`."""
        lease = await self.primary.begin_generation(workflow_id, token=token)
        if workflow_id in self._runs:
            self._runs[workflow_id].owner = lease.token
        return lease

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release a run in both stores; see `StoreBase.release`."""
        await self.primary.release(workflow_id, **({"token": token} if token else {}))
        run = self._runs.get(workflow_id)
        if run is None or (token and run.owner not in ("", token)):
            return
        del self._runs[workflow_id]
        await (self._release_mirror(run) if self._fails_with_mirror else self._finish(workflow_id, run))

    async def _release_mirror(self, run: _MirroredRun) -> None:
        async with run.one_at_a_time:
            lease, run.lease = run.lease, None
            if lease is not None:
                with suppress(FlowckptError):  # the claim ends with the process, or is taken over
                    await release_lease(self.mirror, lease)

    async def make_savable(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Make an owned run savable again, if the primary failed; see `StoreBase.make_savable`."""
        if workflow_id in self._failed:
            return None  # the primary has the last checkpoint
        return await self.primary.make_savable(workflow_id, history)

    def close(self) -> None:
        """Release the runs of both stores, and all their resources."""
        for store in (self.primary, self.mirror):
            getattr(store, "close", lambda: None)()

    # --- the runs -------------------------------------------------------------------------------------------------

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return a checkpoint of the primary."""
        return await self.primary.load(workflow_id, checkpoint_id)

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint of the primary."""
        return await self.primary.load_latest(workflow_id, attempt=attempt)

    async def list_checkpoints(self, workflow_id: str, **wanted: Any) -> Sequence[CheckpointRef]:
        """Return the selected checkpoints of the primary."""
        return await self.primary.list_checkpoints(workflow_id, **wanted)

    async def clear(self, workflow_id: str) -> None:
        """Remove a run from both stores; the mirror keeps one that has more than the primary.

        Raises:
            MirrorError: the mirror cannot be reached; nothing was removed.
        """
        run = self._runs.pop(workflow_id, None)
        if run is not None:
            await (self._release_mirror(run) if self._fails_with_mirror else self._finish(workflow_id, run))
        try:
            if self._fails_with_mirror:
                await self._clear_mirror(workflow_id)
            elif not await self._jobs.done(partial(self._clear_mirror, workflow_id)):
                raise CheckpointStorageError("it does not answer")
        except RunLockedError:  # by its owner, as in the primary
            raise
        except FlowckptError as error:
            if self._fails_with_mirror:
                raise self._mirror_error(workflow_id, error) from error
            _log.warning("the mirror %s may keep run %s: %s", _format_store(self.mirror), workflow_id, error.message)
        await self.primary.clear(workflow_id)  # last, so that a second call finishes an interrupted one

    async def _clear_mirror(self, workflow_id: str) -> None:
        there = await self.mirror.load_latest(workflow_id)
        try:
            await self._find_missing(workflow_id, there, await self.primary.load_latest(workflow_id))
        except FlowckptError as error:  # it has another history, or the primary's history is unreadable
            _log.warning("the mirror %s keeps run %s: %s", _format_store(self.mirror), workflow_id, error.message)
        else:
            await self.mirror.clear(workflow_id)

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Store a whole run in the primary, then in the mirror; see `StoreBase.receive_run`.

        Raises:
            MirrorError: the run is in the primary, but not in the mirror.
        """
        await self.primary.receive_run(workflow_id, checkpoints)
        await self._level_alone(workflow_id)

    async def repair(self, workflow_id: str) -> Repaired:
        """Repair a run in the primary, and bring its mirror level; see `StoreBase.repair`.

        Raises:
            MirrorError: the mirror cannot take it, or has another history.
        """
        repaired = await self.primary.repair(workflow_id)
        await self._level_alone(workflow_id)
        return repaired

    async def _level_alone(self, workflow_id: str) -> None:
        """Bring the mirror level for a run that this process does not own."""
        run = _MirroredRun()
        try:
            await self._take(workflow_id, run, None)
        except Exception as error:
            raise self._mirror_error(workflow_id, error) from error
        finally:
            await self._release_mirror(run)

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Check the primary, and whether the mirror is level; see `StoreBase.check`."""
        findings = [*await self.primary.check(workflow_id)]
        runs = sorted({each.workflow_id for each in findings if each.workflow_id})
        compared: list[Finding] = []
        for each in runs:
            finding = await self._compare(each)
            compared += [] if finding is None else [finding]
            if finding is not None and finding.severity == "failed":
                break  # each further run would wait as long
        return [*findings, *compared]

    async def _compare(self, workflow_id: str) -> Finding | None:
        """Return how the mirror of a run differs, and what to do; None if it is level."""
        name, mirror = shell_word(workflow_id), _format_store(self.mirror)
        try:
            there = await self.mirror.load_latest(workflow_id)
        except FlowckptError as error:
            return Finding(workflow_id, "failed", f"the mirror {mirror} cannot be read: {error.message}")
        try:
            missing = await self._find_missing(workflow_id, there, await self.primary.load_latest(workflow_id))
        except MirrorError as error:
            return Finding(workflow_id, "corrupt", str(error))
        except CheckpointCorruptedError:
            if there is None:
                return None
            has = f"the mirror {mirror} has the run up to checkpoint {there.checkpoint_id!r}"
            way = f"'flowckpt store clear {name}', then '{_copy_back_command(name, self.mirror, self.primary)}', takes it from there"
            return Finding(workflow_id, "notice", f"{has}; {way}")
        except FlowckptError:
            return None  # the findings of the primary have it
        if not missing:
            return None
        return Finding(
            workflow_id,
            "notice",
            f"the mirror {mirror} lacks {pluralize(len(missing), 'checkpoint')}, from {missing[0].checkpoint_id!r} on; the next "
            f"save or resume, or 'flowckpt store repair {name}', brings it level",
        )


_ANSWERED_BY_THE_PRIMARY = tuple(
    name
    for name, member in vars(StoreBase).items()
    if callable(member)
    and not name.startswith("_")
    and name not in vars(MirroredStore)
    and name not in ("has", "lacks")
)


class _JobQueue:
    """Runs jobs one after the other, on a thread that ends when no job is left.

    Attributes:
        progress: grows while something is done.
    """

    def __init__(self) -> None:
        self.progress = 0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._waiting: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._changed = threading.Condition()
        self._is_running = False

    @property
    def pending(self) -> int:
        """The number of pending jobs."""
        return len(self._waiting)

    async def done(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run a job after the pending ones, and wait for it as long as there is progress.

        Returns:
            Whether it has run; otherwise it is still pending, unless no thread can be started.
        """
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def do() -> None:
            try:
                await work()
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        if not self.put(do):
            return False
        answer, before = asyncio.wrap_future(outcome), -1
        while before != self.progress:
            before = self.progress
            if (await asyncio.wait({answer}, timeout=_PATIENCE_SECONDS))[0]:
                answer.result()
                return True
        return False

    def put(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run a job after the pending ones.

        Returns:
            Whether it will run; otherwise no thread can be started, and the job is dropped.
        """
        if self._pid != os.getpid():  # a forked child has no such thread
            self._reset()
        with self._changed:
            if not self._is_running:
                try:
                    start_thread(self._work, "flowckpt-mirror")
                except CheckpointStorageError:  # as many threads as the system allows, or Python is ending
                    return False
                self._is_running = True
            self._waiting.append(work)
            self._changed.notify()
        return True

    def _work(self) -> None:
        try:
            with asyncio.Runner() as runner:
                while work := self._next():
                    run_alone(runner, work())
                    self.progress += 1
        except BaseException:  # such as no file descriptor for the loop: the next job starts a thread again
            with self._changed:
                self._is_running = False
            raise

    def _next(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, timeout=1.0):
                self._is_running = False
                return None
            return self._waiting.popleft()


def _is_same(one: CheckpointData, other: CheckpointData) -> bool:
    """Return whether two checkpoints are equal apart from the attempt number."""
    return (
        (one.sequence, one.checkpoint_id, one.saved_at, one.reason, one.workflow_name)
        == (other.sequence, other.checkpoint_id, other.saved_at, other.reason, other.workflow_name)
        and one.metadata.get(BIRTH) == other.metadata.get(BIRTH)
        and as_view(one.step_results).chain == as_view(other.step_results).chain
    )


def _follows(later: CheckpointData, earlier: CheckpointData) -> bool:
    """Return whether a checkpoint may follow another one of the same run that was removed since.

    The primary keeps nothing of an earlier generation to compare. A checkpoint that came from the primary is marked, which
    distinguishes it from one that a primary restored from a backup has lost.
    """
    if later.metadata.get(BIRTH) != earlier.metadata.get(BIRTH) or later.workflow_name != earlier.workflow_name:
        return False
    if _generation(later) > _generation(earlier):
        return earlier.metadata.get(_MARK) == earlier.attempt and may_precede(
            later.metadata, earlier.metadata, results=len(earlier.step_results), saved_at=earlier.saved_at
        )
    return generation_start(later.metadata) == generation_start(earlier.metadata) and _continues(later, earlier)


def _generation(data: CheckpointData) -> int:
    return number_of(data.metadata)


def _continues(later: CheckpointData, earlier: CheckpointData) -> bool:
    """Return whether the history of a checkpoint starts with that of another one, in the same generation."""
    return later.reason is not Reason.CONTINUED and as_view(later.step_results).continues(as_view(earlier.step_results))


def _describe_newest(data: CheckpointData) -> str:
    number = _generation(data)
    which = f" of generation {number}," if number > 1 else " of"
    return f"checkpoint {data.checkpoint_id!r}{which} {data.saved_at:%Y-%m-%d %H:%M:%S}"


def _format_store(store: StoreBase) -> str:
    """Return the name of a store as its user gave it."""
    return store.spec or repr(store)


def _format_option(store: StoreBase, otherwise: str) -> str:
    """Return the value of `--store` for a store; a placeholder if it is unknown or contains a secret."""
    return shell_word(store.spec) if store.spec and "***" not in store.spec else otherwise


def _copy_back_command(name: str, mirror: StoreBase, primary: StoreBase) -> str:
    return f"flowckpt copy {name} --store {_format_option(mirror, 'MIRROR')} --to {_format_option(primary, 'STORE')}"


def _is_same_place(one: StoreBase, other: StoreBase) -> bool:
    here, there = (getattr(store, "path", None) for store in (one, other))
    if here is None or there is None:
        return one is other
    return bool(os.path.realpath(here) == os.path.realpath(there))


def _same_place_error(mirror: StoreBase) -> SettingError:
    return SettingError(
        f"the mirror {_format_store(mirror)} is the store itself",
        setting="mirror",
        remedy="Name another place, or omit the mirror.",
    )
