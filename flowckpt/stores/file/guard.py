"""Who may use a store that is protected by a key: whoever has one of its keys; to read what is not encrypted, all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, KeyMissingError, WrongKeyError
from flowckpt.filesystem import FileSystem
from flowckpt.lazy import LazyModule
from flowckpt.stores.file.identity import make_identity, read_identity, sweep_root
from flowckpt.stores.file.names import IDENTITY, keys_numbers
from flowckpt.stores.sealing.protection import Seals

if TYPE_CHECKING:
    from flowckpt.stores.file import known_keys, sealed_runs
    from flowckpt.stores.sealing.keys import Key, KeyRing
else:  # only a store with a key needs them, or one that runs are in already
    known_keys = LazyModule("flowckpt.stores.file.known_keys")
    sealed_runs = LazyModule("flowckpt.stores.file.sealed_runs")

_TRIES = 100
_LOOKS = 32
"""Runs that are looked at for a seal in a store that has none itself: each costs 40 µs, in every process that writes."""


class Guard:
    """Refuses who has not the key of a store, before anything is changed.

    Args:
        filesystem: the calls.
        seals: the seals of the store.
        store_id: returns the identity of the store, or None where it has none.
    """

    def __init__(self, filesystem: FileSystem, seals: Seals, store_id: Callable[[], str | None]) -> None:
        self._filesystem = filesystem
        self._seals = seals
        self._store_id = store_id
        self._is_plain = False
        self._is_reader_known = False
        self._settled: str | None = None

    def check_writer(self, root: int, workflow_id: str) -> None:
        """Refuse a change by who has no key, or another one than the store's; note a key that was put before it.

        Args:
            root: the store's directory, open.
            workflow_id: the run that is to be changed; an empty text for the store.

        Raises:
            KeyMissingError: the store is protected by a key, and there is none.
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity; or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if not self._has_identity(root):
            return
        if ring is None:
            raise KeyMissingError(workflow_id, key_id=self._newest_key(root))
        self._settle_keys(root, ring, workflow_id)

    def check_reader(self, root: int, workflow_id: str) -> None:
        """Refuse a key that is not the store's to read with. Whoever has none may read what is not encrypted.

        Args:
            root: the store's directory, open.
            workflow_id: the run that is asked for; an empty text for the store.

        Raises:
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity; or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if ring is None or self._is_reader_known or not self._has_identity(root):
            return
        store_id = self._store_id()
        if store_id is None:  # taken away just now: each record says so
            return
        known = known_keys.read_known(self._filesystem, root)
        if known:  # else every record speaks for itself
            known_keys.check_ring(ring, known, store_id, workflow_id)
            self._is_reader_known = True

    def make_identity(self, root: int, workflow_id: str) -> None:
        """Make sure that a store has an identity, and knows the key, before anything is sealed in it.

        Args:
            root: the store's directory, open, and synced just now: an identity that another process has made is durable.
            workflow_id: the run that is about to be written.

        Raises:
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity.
        """
        ring = self._seals.protection.ring
        if ring is None:
            return
        filesystem = self._filesystem
        sweep_root(filesystem, root)
        if read_identity(filesystem, root) is None:
            is_sealed = keys_numbers(filesystem.names(root)) or any(sealed_runs.sealed_segments(filesystem, root))
            if is_sealed and not filesystem.exists(root, IDENTITY):  # else another process made all of it just now
                raise sealed_runs.lost_identity(filesystem, root)
            make_identity(filesystem, root)
        self._settle_keys(root, ring, workflow_id)

    def _settle_keys(self, root: int, ring: KeyRing, workflow_id: str) -> None:
        """Make sure that the store knows the key that is written with, which must be its own or come with one that is."""
        filesystem = self._filesystem
        store_id = read_identity(filesystem, root)
        if store_id is None or store_id == self._settled:
            return
        for _ in range(_TRIES):
            known = known_keys.read_known(filesystem, root)
            if known:
                known_keys.check_ring(ring, known, store_id, workflow_id)
                if any((each.id, each.use) == (ring.newest.id, ring.newest.use) for each in known):
                    self._settled = store_id
                    return
                keys = [ring.newest]
            else:
                proved = self._proved_keys(root, ring, workflow_id)
                keys = [ring.newest, *(key for key in proved if key != ring.newest)]
            # Another process may have made the identity that the note names, and not synced it yet.
            filesystem.sync(root)
            known_keys.add_known(filesystem, root, keys, store_id, known)
        raise CheckpointStorageError(
            f"the keys of the store change faster than one could be noted for run {workflow_id!r}",
            workflow_id=workflow_id,
            operation="save",
        )

    def _proved_keys(self, root: int, ring: KeyRing, workflow_id: str) -> list[Key]:
        """Return the keys at hand that a record of the store proves, where it was made before its keys were noted.

        Raises:
            WrongKeyError: there are sealed records, and none of the keys opens one.
        """
        foreign = ""
        proved: dict[str, Key] = {}
        for segment in sealed_runs.sealed_segments(self._filesystem, root):
            if len(proved) == len(ring.keys):
                break
            key = ring.get(segment.key_id)
            if key is None:
                foreign = foreign or segment.key_id
            elif key.id not in proved and segment.is_proved_by(self._seals):
                proved[key.id] = key
        if foreign and not proved:
            raise WrongKeyError(workflow_id, key_id=foreign, known=[key.id for key in ring.keys], is_whole_store=True)
        return [key for key in ring.keys if key.id in proved]

    def _has_identity(self, root: int) -> bool:
        """Tell whether the store has an identity.

        Raises:
            CheckpointCorruptedError: it has none, and was sealed: somebody has taken it away.
        """
        filesystem = self._filesystem
        if filesystem.exists(root, IDENTITY):
            return True
        if not self._is_plain:
            if keys_numbers(filesystem.names(root)) or sealed_runs.has_sealed_run(filesystem, root, most=_LOOKS):
                if filesystem.exists(root, IDENTITY):  # another process made it just now, and then all else
                    return True
                raise sealed_runs.lost_identity(filesystem, root)
            self._is_plain = True
        return False

    def _newest_key(self, root: int) -> str:
        try:
            known = known_keys.read_known(self._filesystem, root)
        except CheckpointCorruptedError:  # which key it is only helps
            return ""
        return known[0].id if known else ""
