"""Checkpoints in a local directory: the default store.

::

    .flowckpt/runs/RUN/00000001.jsonl   the segment of attempt 1: one JSON record per line
                       00000002.jsonl   the segment of attempt 2, which names the record that it continues
                       blobs/SHA256     large values, one file per content
                       signals/ID.json  messages for the run, written by their senders
                       lock             locked by the live owner
                       head             the last acknowledged line, with a key
               index/NAME               the index of results, without a key; may be missing or outdated
               store.json               the identity of the store, with a key
               keys-00000001.json       the ids of its keys, without their secrets

The protocol is in `claim`, `run_writer` (saves), and the modules `segment` and `image` of `flowckpt.stores.log`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowckpt.core.system.blocking import run_blocking
from flowckpt.stores import file
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.log import sealing
from flowckpt.stores.runs_base import RetainingStore, delegate_to_runs

if TYPE_CHECKING:
    from flowckpt.core.system.clock import Clock
    from flowckpt.core.system.filesystem import FileSystem
    from flowckpt.stores.file.runs import FileRuns  # noqa: F401 - the base class below names it
    from flowckpt.stores.file.store_keys import TrustReport
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.queries import Repaired


class FileCheckpointStore(RetainingStore["FileRuns"]):
    """Stores checkpoints in a local directory, safe against `kill -9` and power cuts.

    Args:
        path: the store's directory, created at the first save.
        allow_filesystems: types of file systems to accept despite unsound locks, such as `("nfs4",)`.
        filesystem: the operating-system calls, for tests.
        clock: the time, for tests.
        key_file: a file with keys; its newest key authenticates or encrypts records.
        keys: the keys, instead of a file.
        compression: the compression of records and large values: `none`, `gzip`, `zstd` or `auto`.
        trust: accept runs whose records are not authenticated by the key, or whose end may be missing.

    Raises:
        KeyFileError: the key file is missing, invalid, or readable by other users.
        SettingError: keys come from two sources, the compression is unknown, or a package is missing.

    Attributes:
        path: the directory, absolute.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ".flowckpt",
        *,
        allow_filesystems: Sequence[str] = (),
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
        key_file: str | os.PathLike[str] | None = None,
        keys: KeyRing | None = None,
        compression: str = "none",
        trust: bool = False,
    ) -> None:
        # Absolute, because a step that changes the working directory must not move the store.
        self.path = Path(path).absolute()
        protection = None
        if key_file is not None or keys is not None or compression != "none":
            protection = sealing.protection.make_protection(key_file, keys, compression, trust)
        self.runs = file.runs.FileRuns(
            self.path, allowed=allow_filesystems, filesystem=filesystem, clock=clock, protection=protection
        )

        if self.runs.seals.has_key:  # the index would reveal which runs made equal calls
            self.abilities = self.abilities - {Ability.INDEX}

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self.path)!r})"

    started_steps = delegate_to_runs(StoreBase.started_steps)
    last_seen = delegate_to_runs(StoreBase.last_seen)
    make_savable = delegate_to_runs(StoreBase.make_savable)

    async def trust(self, workflow_id: str) -> TrustReport:
        """Accept a run permanently although its records are not authenticated; the store must have `trust=True`.

        Args:
            workflow_id: a run that was started without a key, or whose end cannot be proved.

        Returns:
            The records taken on trust (`plain`), authenticated (`sealed`) and `lost`. For a fully
            authenticated run, nothing is written.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            RunLockedError: another process owns it.
        """
        return await run_blocking(lambda: self.runs.trust(workflow_id))

    async def use_reserve(self) -> bool:
        """Remove the reserve of the directory; see `StoreBase.use_reserve`."""
        return await run_blocking(self.runs.reserve.use)

    async def repair(self, workflow_id: str) -> Repaired:
        """Set aside the damaged parts of a run, and keep the rest; see `StoreBase.repair`."""
        return await file.repair.repair_run(self, workflow_id)

    @property
    def keys(self) -> KeyRing | None:
        """Its keys; None with `trust`, because then they prove nothing."""
        protection = self.runs.seals.protection
        return None if protection.is_trusting else protection.ring

    @property
    def is_encrypting(self) -> bool:
        """Whether it has an encryption key."""
        ring = self.runs.seals.protection.ring
        return ring is not None and ring.is_encrypting
