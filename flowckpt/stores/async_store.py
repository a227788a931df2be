"""The async door in front of a store that works in place: in place where nothing else runs, else on a worker thread.

A store of ours reads and writes synchronously, in its `runs`. What every one of them can do is handed on here, once; what
only some can (messages, retention) stands in a class of its own below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from flowckpt.core.system.blocking import may_block, run_blocking
from flowckpt.errors import EncodingError
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo
    from flowckpt.core.records.wait import Signal
    from flowckpt.stores.base import Compacted, Finding, Lease, RunSurvey


class Runs(Protocol):
    """The runs of a store, read and written in place. Each method does what the store's method of that name promises."""

    def save(self, workflow_id: str, data: CheckpointData) -> None: ...  # noqa: D102
    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData: ...  # noqa: D102
    def clear(self, workflow_id: str) -> object: ...  # noqa: D102
    def acquire(self, workflow_id: str, *, steal: bool) -> Lease: ...  # noqa: D102
    def release(self, workflow_id: str, *, token: str = "") -> None: ...  # noqa: D102
    def owner(self, workflow_id: str) -> Owner | None: ...  # noqa: D102
    def list_runs(self) -> list[RunInfo]: ...  # noqa: D102
    def survey(self, wanted: RunFilter | None) -> RunSurvey: ...  # noqa: D102
    def unreadable(self) -> list[Finding]: ...  # noqa: D102
    def describe(self, workflow_id: str) -> RunInfo | None: ...  # noqa: D102
    def delete(self, workflow_id: str, checkpoint_id: str) -> bool: ...  # noqa: D102
    def latest_of_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None: ...  # noqa: D102
    def attempts(self, workflow_id: str) -> list[int]: ...  # noqa: D102
    def references_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]: ...  # noqa: D102
    def data_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]: ...  # noqa: D102
    def share(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None: ...  # noqa: D102
    def check(self, workflow_id: str | None) -> list[Finding]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class SignalledRuns(Runs, Protocol):
    """Runs that take messages."""

    def send_signal(self, workflow_id: str, signal: Signal) -> bool: ...  # noqa: D102
    def signals(self, workflow_id: str) -> list[Signal]: ...  # noqa: D102
    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None: ...  # noqa: D102


class EvictableRuns(SignalledRuns, Protocol):
    """Runs that take messages, and whose checkpoints can be removed by their sequences."""

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None: ...  # noqa: D102
    def delete_sequences(self, workflow_id: str, sequences: Collection[int]) -> int: ...  # noqa: D102


class RetainedRuns(EvictableRuns, Protocol):
    """Runs that take messages, and that can be kept small."""

    def pin(self, workflow_id: str, sequence: int) -> None: ...  # noqa: D102
    def unpin(self, workflow_id: str, sequence: int) -> None: ...  # noqa: D102
    def pinned(self, workflow_id: str) -> frozenset[int]: ...  # noqa: D102
    def compactable(self, after: str, limit: int) -> list[str]: ...  # noqa: D102
    def compact(self, workflow_id: str, *, is_forced: bool) -> Compacted: ...  # noqa: D102
    def page(self, before: RunInfo | None, limit: int) -> list[RunInfo]: ...  # noqa: D102
    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]: ...  # noqa: D102
    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]: ...  # noqa: D102
    def tidy(self) -> None: ...  # noqa: D102


R = TypeVar("R", bound=Runs)
S = TypeVar("S", bound=SignalledRuns)
E = TypeVar("E", bound=EvictableRuns)
K = TypeVar("K", bound=RetainedRuns)


class AsyncDoor(StoreBase, Generic[R]):
    """What every store of ours hands on to its runs.

    Attributes:
        runs: the synchronous store behind this one.
    """

    runs: R

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        else:
            await run_blocking(lambda: self.runs.save(workflow_id, data))

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        return await run_blocking(lambda: self.runs.load(workflow_id, checkpoint_id))

    async def clear(self, workflow_id: str) -> None:
        """Remove the run; see `CheckpointStore.clear`."""
        await run_blocking(lambda: self.runs.clear(workflow_id))

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Claim the run's next attempt and read the run."""
        return await run_blocking(lambda: self.runs.acquire(workflow_id, steal=steal))

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give the run up."""
        await run_blocking(lambda: self.runs.release(workflow_id, token=token))

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive."""
        return await run_blocking(lambda: self.runs.owner(workflow_id))

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, without loading them."""
        return await run_blocking(self.runs.list_runs)

    async def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs and those that cannot be read."""
        return await run_blocking(lambda: self.runs.survey(wanted))

    async def unreadable_runs(self) -> Sequence[Finding]:
        """Return those that cannot be read."""
        return await run_blocking(self.runs.unreadable)

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it."""
        return await run_blocking(lambda: self.runs.describe(workflow_id))

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete the checkpoints of that id."""
        return await run_blocking(lambda: self.runs.delete(workflow_id, checkpoint_id))

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as it left it."""
        return await run_blocking(lambda: self.runs.latest_of_attempt(workflow_id, attempt))

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something."""
        return await run_blocking(lambda: self.runs.attempts(workflow_id))

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first."""
        return await run_blocking(lambda: self.runs.references_of_attempt(workflow_id, attempt))

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first."""
        return await run_blocking(lambda: self.runs.data_of_attempt(workflow_id, attempt))

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Give large values of one run to another without a second copy."""
        await run_blocking(lambda: self.runs.share(source_id, workflow_id, sizes))

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read all records and large values and verify them."""
        return await run_blocking(lambda: self.runs.check(workflow_id))

    def close(self) -> None:
        """Release every run that this store owns, and all its resources."""
        self.runs.close()


class SignallingDoor(AsyncDoor[S]):
    """What the stores hand on whose runs take messages."""

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Make a message for a run durable."""
        return await run_blocking(lambda: self.runs.send_signal(workflow_id, signal))

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run."""
        return await run_blocking(lambda: self.runs.signals(workflow_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages."""
        await run_blocking(lambda: self.runs.remove_signals(workflow_id, signal_ids))


class EvictingDoor(SignallingDoor[E]):
    """What the stores hand on whose runs take messages, and whose checkpoints can be removed by their sequences."""

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Name checkpoints that go with the next save, in the same breath."""
        self.runs.evict_with_next_save(workflow_id, sequences)

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Delete checkpoints."""
        return await run_blocking(lambda: self.runs.delete_sequences(workflow_id, sequences))


class RetainingDoor(EvictingDoor[K]):
    """What the stores hand on whose runs take messages, and can be kept small."""

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Keep a checkpoint, whatever is pruned."""
        await run_blocking(lambda: self.runs.pin(workflow_id, sequence))

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Let it go."""
        await run_blocking(lambda: self.runs.unpin(workflow_id, sequence))

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return what is pinned."""
        return await run_blocking(lambda: self.runs.pinned(workflow_id))

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs that may be compacted, some at a time."""
        return await run_blocking(lambda: self.runs.compactable(after, limit))

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Free what nothing names any more."""
        return await run_blocking(lambda: self.runs.compact(workflow_id, is_forced=is_forced))

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, some at a time."""
        return await run_blocking(lambda: self.runs.page(before, limit))

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return how much runs take."""
        return await run_blocking(lambda: self.runs.stored_bytes(workflow_ids))

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Clear runs that are still as they were."""
        return await run_blocking(lambda: self.runs.clear_unchanged(runs))

    async def tidy(self) -> None:
        """Finish what a crash cut short, and give space back."""
        await run_blocking(self.runs.tidy)


# The refusal of what no record can hold.


def refusal_of_field(error: Exception) -> EncodingError:
    """Return the error for a field that JSON or UTF-8 cannot hold (a lone surrogate).

    Args:
        error: what Python says: a `TypeError`, a `ValueError` or a `RecursionError`.
    """
    return EncodingError(
        f"a field of the checkpoint cannot be recorded: {error}", place="checkpoint", remedy="Give it as text."
    )


@contextmanager
def refused_as_encoding_error() -> Iterator[None]:
    """Turn what Python says of a field that JSON or UTF-8 cannot hold (a lone surrogate) into `EncodingError`."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal_of_field(error) from error
