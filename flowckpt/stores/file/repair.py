"""Repair of a damaged run: its directory is set aside, and a copy of the intact part replaces it.

    lock the run ──► copy the intact part ──► set the run's directory aside ──► put the copy in its place

The directory is set aside in a store of its own, `damaged/RUN-TIME` in the store's directory, so every command can read
it. A crash between the last two steps leaves the run set aside; the next repair puts the intact part in its place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.codec.blob import Blob
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.filesystem import sync_directory
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    FlowckptError,
    ForeignRecordError,
    RunLockedError,
)
from flowckpt.stores.content import find_damaged_attempts
from flowckpt.stores.file.layout import (
    HEAD,
    IDENTITY,
    LIVE,
    LOCK,
    RUNS,
    keys_name,
    keys_numbers,
    run_directory,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.log.image import open_header
from flowckpt.stores.log.sealing.protection import Seals
from flowckpt.stores.log.segment import SegmentDamagedError, parse_segment
from flowckpt.stores.queries import DAMAGE, Loss, Repaired, read_all_attempts, unrepairable_error

if TYPE_CHECKING:
    from flowckpt.stores.file.store import FileCheckpointStore

DAMAGED = "damaged"
"""The directory in a store for runs that were set aside."""
_INTACT = "intact"


async def repair_run(store: FileCheckpointStore, workflow_id: str) -> Repaired:
    """Set aside the damaged parts of a run, and keep the rest; see `StoreBase.repair`."""
    store.runs._check_writer(workflow_id)
    try:
        return await _Repair(store, workflow_id).run()
    except OSError as error:
        raise CheckpointStorageError(
            f"the store in {str(store.path)!r} could not repair run {workflow_id!r}: {error.strerror or error}",
            workflow_id=workflow_id,
            operation="repair",
        ) from error


@attrs.define
class _Repair:
    store: FileCheckpointStore
    workflow_id: str
    lost: list[Loss] = attrs.field(init=False, factory=list)
    _are_lost: dict[str, bool] = attrs.field(init=False, factory=dict)

    @property
    def place(self) -> Path:
        return self.store.path / RUNS / run_directory(self.workflow_id)

    async def run(self) -> Repaired:
        left = self._find_aside()
        if not self.place.is_dir() or (left is not None and not segment_numbers(_list_names(self.place))):
            if left is None:
                raise CheckpointNotFoundError(self.workflow_id)
            return await self._restore_run(left)
        lock = os.open(self.place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = await self.store.owner(self.workflow_id)
                raise RunLockedError(self.workflow_id, holder=str(owner or "another process")) from None
            if await self._is_intact():
                return self._make_report(await read_all_attempts(self.store, self.workflow_id), "")
            aside = self._make_aside()
            try:
                await self._copy_intact(aside)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            (aside / RUNS).mkdir()
            self.place.rename(aside / RUNS / self.place.name)
            (aside / RUNS / self.place.name / LOCK).unlink()  # processes that waited for it check again
            for directory in (aside / RUNS, aside, aside.parent, self.store.path / RUNS):
                sync_directory(directory)
        finally:
            os.close(lock)
        return await self._restore_run(aside)

    async def _is_intact(self) -> bool:
        try:
            latest = await self.store.load_latest(self.workflow_id)
        except DAMAGE:
            return False
        if latest is None:
            raise CheckpointNotFoundError(self.workflow_id)
        return not await find_damaged_attempts(self.store, self.workflow_id)

    def _find_aside(self) -> Path | None:
        """Return the directory that an interrupted repair set aside without putting the copy in its place."""
        name = self.place.name
        found = sorted((self.store.path / DAMAGED).glob(f"{name}-*/{_INTACT}/{RUNS}/{name}"))
        return found[-1].parents[2] if found else None

    def _make_aside(self) -> Path:
        base = f"{self.place.name}-{self.store.runs._clock.now():%Y%m%dT%H%M%SZ}"
        for number in range(1000):
            aside = self.store.path / DAMAGED / (f"{base}-{number}" if number else base)
            if not aside.exists():
                (aside / _INTACT / RUNS).mkdir(parents=True)
                return aside
        raise FileExistsError(f"{base} exists a thousand times")

    async def _copy_intact(self, aside: Path) -> None:
        """Copy the run without its damaged parts; copy the identity and keys of the store next to both."""
        notes = [IDENTITY, *(keys_name(number) for number in keys_numbers(_list_names(self.store.path)))]
        for name in notes:
            if (self.store.path / name).exists():
                shutil.copy2(self.store.path / name, aside / name)
                shutil.copy2(self.store.path / name, aside / _INTACT / name)
        copy = aside / _INTACT / RUNS / self.place.name
        segments = segment_numbers(_list_names(self.place))
        shutil.copytree(self.place, copy, ignore=shutil.ignore_patterns(LOCK, LIVE, f"{HEAD}*", "*.jsonl", ".*"))
        for number in segments:
            self._copy_segment(number, copy)
        intact = self._open_store(aside / _INTACT)
        while True:
            try:
                kept = await self._read_copy(intact)
            except (CheckpointCorruptedError, ForeignRecordError) as damage:
                self._remove_newest(copy, damage)
            else:
                break
        if not kept:
            raise unrepairable_error(self.workflow_id, str(self.place))

    def _open_store(self, path: Path) -> FileCheckpointStore:
        """Open a store with the same keys, without a check of the head files."""
        protection = self.store.runs.seals.protection
        return type(self.store)(
            path, keys=protection.ring, compression=protection.compression or "none", trust=protection.ring is not None
        )

    def _copy_segment(self, number: int, copy: Path) -> None:
        """Copy a segment up to its first damaged line; nothing if its header is damaged."""
        data = (self.place / segment_name(number)).read_bytes()
        kept, why = _extract_intact(self.workflow_id, number, data, self.store.runs.seals)
        if why:
            self.lost.append(Loss(segment_name(number), len(data) - len(kept), why))
        if kept:
            (copy / segment_name(number)).write_bytes(kept)

    async def _read_copy(self, intact: FileCheckpointStore) -> Sequence[CheckpointData]:
        """Return the checkpoints in the copy, without those that need a lost value.

        If the current history is cut, checkpoints that it had left behind must not become current again.
        """
        found = await read_all_attempts(intact, self.workflow_id)
        kept = {data.sequence: data for data in found if self._has_values(data)}
        current = {each.sequence for each in await intact.list_checkpoints(self.workflow_id)}
        newest = max(current & kept.keys() or kept, default=0)
        return [data for data in kept.values() if data.sequence <= newest]

    def _has_values(self, data: CheckpointData) -> bool:
        held = [*data.held_values, *(result.held_output for result in data.step_results)]
        return not [each for each in held if isinstance(each, Blob) and self._is_lost(each)]

    def _is_lost(self, value: Blob) -> bool:
        """Return whether a large value cannot be read; note it as lost."""
        if value.digest not in self._are_lost:
            self._are_lost[value.digest] = False
            try:
                value.content()
            except CheckpointCorruptedError as error:
                self._are_lost[value.digest] = True
                detail = f"{error.detail}; the checkpoints that need it were removed"
                self.lost.append(Loss(error.location, value.size, detail))
        return self._are_lost[value.digest]

    def _remove_newest(self, copy: Path, damage: CheckpointCorruptedError | ForeignRecordError) -> None:
        """Remove the newest segment from the copy, in which something continues a lost record."""
        segments = segment_numbers(_list_names(copy))
        if not segments:
            raise damage
        newest = copy / segment_name(segments[-1])
        self.lost.append(Loss(newest.name, newest.stat().st_size, f"it continues a lost record: {damage.message}"))
        newest.unlink()

    async def _restore_run(self, aside: Path) -> Repaired:
        """Put the intact copy in the place of the run, with its messages and pins."""
        intact = self._open_store(aside / _INTACT)
        found = await self._read_copy(intact)
        if await self.store.load_latest(self.workflow_id) is None:
            await self.store.receive_run(self.workflow_id, lambda: found)
        try:
            for message in await intact.signals(self.workflow_id):
                await self.store.send_signal(self.workflow_id, message)
        except FlowckptError as error:
            self.lost.append(Loss("signals", 0, f"its messages: {error.message}"))
        sequences = {each.sequence for each in await self.store.list_checkpoints(self.workflow_id)}
        for sequence in await intact.pinned(self.workflow_id) & sequences:
            await self.store.pin(self.workflow_id, sequence)
        shutil.rmtree(aside / _INTACT)
        return self._make_report(found, str(aside))

    def _make_report(self, checkpoints: Sequence[CheckpointData], aside: str) -> Repaired:
        latest = checkpoints[-1]
        counts = len(checkpoints), len(latest.step_results)
        return Repaired(self.workflow_id, aside, tuple(self.lost), *counts, latest.checkpoint_id)


def _extract_intact(workflow_id: str, number: int, data: bytes, seals: Seals) -> tuple[bytes, str]:
    """Return the lines of a segment before the first damaged one, and a description of the damage."""
    why = ""
    try:
        _, seal = open_header(workflow_id, number, data, seals)
    except DAMAGE as error:
        return b"", error.message
    while data:
        try:
            parse_segment(data, number=number, seal=seal)
        except SegmentDamagedError as damage:
            why = why or str(damage)
            data = data[: damage.offset] if damage.offset < len(data) else b""  # a pack counts only as a whole
        else:
            break
    return data, why


def _list_names(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]
