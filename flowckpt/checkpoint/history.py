"""The ordered results of a run: one append-only sequence, shared by all its checkpoints.

A checkpoint holds the whole history up to itself. Copying it would cost O(n) a checkpoint and O(n²) a run, so a
checkpoint holds a *view*: the shared sequence and a length. Results are only ever appended, so a view never changes.

Each entry carries the result's canonical bytes (the codec makes them) and a chain digest::

    chain(0) = 32 zero bytes
    chain(n) = SHA-256(chain(n - 1) + canonical bytes of result n)

Two histories with the same chain digest at the same length are the same history, whatever store they lie in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, overload

from flowckpt.checkpoint.result import StepResult

CHAIN_START = bytes(32)


class History:
    """The append-only sequence behind the views of one run."""

    __slots__ = ("blobs", "chains", "encoded", "results")

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self.encoded: list[bytes] = []
        self.chains: list[bytes] = [CHAIN_START]
        self.blobs: dict[int, Mapping[str, Any]] = {}
        """Large values of a result, by its index: content digest to blob. Most results have none."""

    def append(self, result: StepResult, encoded: bytes, blobs: Mapping[str, Any] | None = None) -> None:
        """Append a result with its canonical bytes and its large values.

        Args:
            result: the result.
            encoded: its canonical bytes.
            blobs: the large values that those bytes name by digest.
        """
        self.chains.append(sha256(self.chains[-1] + encoded).digest())
        self.encoded.append(encoded)
        if blobs:
            self.blobs[len(self.results)] = blobs
        self.results.append(result)

    def forked(self, length: int) -> History:
        """Return a new history of the first `length` results, which can be continued in another way."""
        fork = History()
        fork.results = self.results[:length]
        fork.encoded = self.encoded[:length]
        fork.chains = self.chains[: length + 1]
        fork.blobs = {index: blobs for index, blobs in self.blobs.items() if index < length}
        return fork

    def view(self, length: int | None = None) -> HistoryView:
        """Return a view of the first `length` results, of all where it is not given."""
        return HistoryView(self, len(self.results) if length is None else length)


class HistoryView(Sequence[StepResult]):
    """The first n results of a history; made in constant time, and unchanging."""

    __slots__ = ("_length", "history")

    def __init__(self, history: History, length: int) -> None:
        self.history = history
        self._length = length

    @property
    def chain(self) -> bytes:
        """The chain digest at the end of the view."""
        return self.history.chains[self._length]

    def chain_at(self, length: int) -> bytes:
        """Return the chain digest after the first `length` results."""
        if not 0 <= length <= self._length:
            raise IndexError(length)
        return self.history.chains[length]

    def shared_length(self, other: HistoryView) -> int:
        """Return how many results at the beginning the two histories have in common.

        Equal chain digests mean equal prefixes, so this is a search for the last equal one: O(log n).
        """
        low, high = 0, min(len(self), len(other))
        mine, others = self.history.chains, other.history.chains
        while low < high:
            middle = (low + high + 1) // 2
            if mine[middle] == others[middle]:
                low = middle
            else:
                high = middle - 1
        return low

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> StepResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StepResult]: ...
    def __getitem__(self, index: int | slice) -> StepResult | Sequence[StepResult]:
        if isinstance(index, slice):
            return [self.history.results[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self.history.results[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[StepResult]:
        results = self.history.results
        return (results[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equality by value, over results that hold any value

    def __repr__(self) -> str:
        return f"<history of {self._length} results, chain {self.chain.hex()[:12]}>"
