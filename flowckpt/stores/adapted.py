"""Any store as a `StoreBase`: an object with the five methods of `CheckpointStore`, and maybe more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from flowckpt import stores
from flowckpt.core import records
from flowckpt.errors import CheckpointNotFoundError, SettingError
from flowckpt.stores.base import Ability, Finding, StoreBase

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData
    from flowckpt.core.records.listing import CheckpointRef


class CheckpointStore(Protocol):
    """The protocol of stores: five async methods."""

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable, atomically, or raise.

        Args:
            workflow_id: the run.
            data: the checkpoint; its `attempt` fences its writer, its `sequence` orders it.

        Raises:
            FencedError: the writer no longer owns the run.
            SaveConflictError: the run already has or has passed the sequence.
            EncodingError: a value cannot be recorded.
            CheckpointStorageError: the medium failed.
        """
        ...

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id.

        Args:
            workflow_id: the run.
            checkpoint_id: the id.

        Raises:
            CheckpointNotFoundError: the run or checkpoint does not exist.
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None if the run has none.

        Raises:
            CheckpointCorruptedError: the record is damaged; this is never reported as "no checkpoint".
        """
        ...

    async def clear(self, workflow_id: str) -> None:
        """Remove a run completely; after a crash in the middle it is removed or unchanged. No error if it does not exist.

        Raises:
            RunLockedError: another process owns the run.
        """
        ...

    async def list_checkpoints(self, workflow_id: str) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first; none if the run does not exist.

        Raises:
            CheckpointCorruptedError: the record is damaged.
        """
        ...


_METHODS = ("save", "load", "load_latest", "clear", "list_checkpoints")
_OPTIONAL = [name for ability in Ability for name in ability.value]
_OPTIONAL += ["describe_run", "survey_runs", "unreadable_runs"]


class AdaptedStore(StoreBase):
    """A third-party store with the five methods and possibly others of `StoreBase`. Made by `adapt`.

    Other methods count if the object or its class has them, but not through `__getattr__`. Two adapters of one object are equal.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        attributes = _collect_attributes(store)
        methods = {name for name in _OPTIONAL if callable(attributes.get(name))}
        for name in methods - {"check"}:
            setattr(self, name, getattr(store, name))
        self.abilities = frozenset(ability for ability in Ability if methods.issuperset(ability.value))

    def __repr__(self) -> str:
        return repr(self.store)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedStore) and self.store is other.store

    def __hash__(self) -> int:
        return id(self.store)

    @property
    def kind(self) -> str:
        """The name of the adapted store's class."""
        return type(self.store).__name__

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable; see `CheckpointStore.save`."""
        await self.store.save(workflow_id, data)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id; see `CheckpointStore.load`."""
        return await self.store.load(workflow_id, checkpoint_id)

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt; see `StoreBase.load_latest`.

        Raises:
            CheckpointNotFoundError: a later checkpoint with the same id hides the newest one of the attempt.
        """
        latest = await self.store.load_latest(workflow_id)
        if attempt is None:
            return latest
        references = await self.list_checkpoints(workflow_id, attempt=attempt, limit=1)
        if not references:
            return None
        newest = references[0]
        if latest is None or latest.sequence != newest.sequence:
            latest = await self.store.load(workflow_id, newest.checkpoint_id)
        if latest.sequence != newest.sequence:
            detail = "a later checkpoint has the same id"
            raise CheckpointNotFoundError(workflow_id, newest.checkpoint_id, detail=detail)
        return latest

    async def clear(self, workflow_id: str) -> None:
        """Remove a run; see `CheckpointStore.clear`."""
        await self.store.clear(workflow_id)

    async def list_checkpoints(self, workflow_id: str, **wanted: Any) -> Sequence[CheckpointRef]:
        """Return the selected checkpoints, newest first; see `StoreBase.list_checkpoints`."""
        return records.Selection(**wanted).of(await self.store.list_checkpoints(workflow_id))

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Return the findings of the adapted store, and of a check of its content; see `StoreBase.check`."""
        if not self.has(Ability.CHECK):
            return await super().check(workflow_id)
        store: Any = self.store
        return await stores.content.check_content(self, await store.check(workflow_id))


def _collect_attributes(store: object) -> dict[str, Any]:
    """Return the attributes of an object and its classes, like `inspect.getattr_static` but 30 times as fast."""
    attributes: dict[str, Any] = {}
    for each in reversed(type(store).__mro__):
        attributes.update(vars(each))
    with suppress(AttributeError):  # an object with slots
        attributes.update(object.__getattribute__(store, "__dict__"))
    return attributes


def adapt(store: CheckpointStore, setting: str = "store") -> StoreBase:
    """Return a store as a `StoreBase`: itself, or an adapter around an object with the five methods.

    Args:
        store: the store.
        setting: the argument's name, for the error.

    Raises:
        SettingError: it is a description of a store, a class, or an object that lacks one of the five methods.
    """
    if isinstance(store, StoreBase):
        return store
    if not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in _METHODS):
        return AdaptedStore(store)
    fix = "Give a FileCheckpointStore(…), a MemoryCheckpointStore() or open_store(…)"
    if isinstance(store, str):
        fix = f"Open it first: open_store({store!r:.80})"
    raise SettingError(
        f"{setting}={store!r:.80} ({type(store).__name__}) is not a store",
        setting=setting,
        remedy=f"{fix}; a custom store needs the methods {', '.join(_METHODS)}.",
    )
