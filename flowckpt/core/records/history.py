"""The ordered results of a run: one append-only sequence, shared by all its checkpoints.

A checkpoint holds the whole history up to itself. Copying it would cost O(n) a checkpoint and O(n²) a run, so a
checkpoint holds a *view*: the shared sequence and a length. Results are only ever appended, so a view never changes.

Each entry has the result's canonical bytes (the codec makes them) and a chain digest::

    chain(0) = 32 zero bytes
    chain(n) = SHA-256(chain(n - 1) + canonical bytes of result n)

Two histories with the same chain digest at the same length are the same history, whatever store they lie in. The digest
is worked out when somebody asks (1 µs a result): a save need not, because what a store writes is chained by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, overload

from flowckpt.core.records.result import StepResult

CHAIN_START = bytes(32)


class History:
    """The append-only sequence of results that the checkpoints of one run share.

    Attributes:
        results: the results.
        blobs: large values by the index of their result: digest to blob.
        read_as: what its store keeps of how it was read, as long as the history lives.
    """

    __slots__ = (
        "__weakref__",
        "_chains",
        "_encoded",
        "_forked_at",
        "_forked_from",
        "_unsplit",
        "blobs",
        "read_as",
        "results",
    )

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self.blobs: dict[int, Mapping[str, Any]] = {}
        self._encoded: list[bytes] = []
        self._unsplit: list[tuple[int, int, Callable[[], list[bytes]]]] = []
        self._chains: list[bytes] = [CHAIN_START]
        self.read_as: Any = None
        self._forked_from: History | None = None
        self._forked_at = 0

    @property
    def encoded(self) -> list[bytes]:
        """The canonical bytes of each result."""
        if self._unsplit:
            for start, stop, split in self._unsplit:
                self._encoded[start:stop] = split()[: stop - start]
            self._unsplit = []
        return self._encoded

    def encoded_between(self, start: int, stop: int) -> list[bytes]:
        """Return the canonical bytes of some results: those of others are left unsplit, where they are."""
        is_split = not self._unsplit or self._unsplit[-1][1] <= start or start >= stop
        return (self._encoded if is_split else self.encoded)[start:stop]

    def chain_at(self, length: int) -> bytes:
        """Return the chain digest of the first `length` results."""
        chains, encoded, sha256 = self._chains, self.encoded, hashlib.sha256
        for index in range(len(chains) - 1, length):
            chains.append(sha256(chains[-1] + encoded[index]).digest())
        return chains[length]

    def append(self, result: StepResult, encoded: bytes, blobs: Mapping[str, Any] | None = None) -> None:
        """Append a result with its canonical bytes and its large values.

        Args:
            result: the result.
            encoded: its canonical bytes.
            blobs: the large values that these bytes refer to, by digest.
        """
        if blobs:
            self.blobs[len(self.results)] = blobs
        self._encoded.append(encoded)
        self.results.append(result)

    def extend(
        self, results: Sequence[StepResult], blobs: Mapping[int, Mapping[str, Any]], split: Callable[[], list[bytes]]
    ) -> None:
        """Append results that a store has read, whose canonical bytes are hardly ever asked for again.

        Args:
            results: the results.
            blobs: the large values that the bytes of some name by digest, by their places among these results.
            split: returns their canonical bytes.
        """
        start = len(self.results)
        self.results += results
        for place, held in blobs.items():
            self.blobs[start + place] = held
        self._encoded += [b""] * len(results)
        self._unsplit.append((start, len(self.results), split))

    def forked(self, length: int) -> History:
        """Return a new history of the first `length` results, which can be continued in another way."""
        fork = History()
        fork.results = self.results[:length]
        fork._encoded = self._encoded[:length]
        fork._unsplit = [(start, min(stop, length), split) for start, stop, split in self._unsplit if start < length]
        fork.blobs = {index: blobs for index, blobs in self.blobs.items() if index < length}
        fork._forked_from, fork._forked_at = self, length
        return fork

    def view(self, length: int | None = None) -> HistoryView:
        """Return a view of the first `length` results; of all by default."""
        return HistoryView(self, len(self.results) if length is None else length)

    def known_to_share(self, other: History) -> int:
        """Return how many results two histories have in common because of where they come from."""
        if self is other:
            return len(self.results)
        if self._forked_from is other:
            return self._forked_at
        return other._forked_at if other._forked_from is self else 0


class HistoryView(Sequence[StepResult]):
    """The first n results of a history, as an immutable sequence created in constant time."""

    __slots__ = ("_length", "history")

    def __init__(self, history: History, length: int) -> None:
        self.history = history
        self._length = length

    @property
    def chain(self) -> bytes:
        """The chain digest of these results."""
        return self.history.chain_at(self._length)

    def shared_length(self, other: HistoryView) -> int:
        """Return how many results two histories share at their start."""
        length = min(self._length, other._length)
        known = self.history.known_to_share(other.history)
        if known >= length:
            return length
        mine, others = self.history.encoded, other.history.encoded
        return next((index for index in range(known, length) if mine[index] != others[index]), length)

    def continues(self, other: HistoryView) -> bool:
        """Return whether this history starts with the other."""
        if self.history is other.history:
            return self._length >= other._length
        return self.shared_length(other) == other._length

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
        return islice(self.history.results, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equality by value, over results that hold any value

    def __repr__(self) -> str:
        return f"<history of {self._length} results>"
