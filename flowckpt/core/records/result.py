"""The recorded result of a step, and the ordered results of a run: one append-only sequence, shared by all its checkpoints.

A checkpoint holds the whole history up to itself. Copying it would cost O(n) a checkpoint and O(n²) a run, so a
checkpoint holds a *view*: the shared sequence and a length. Results are only ever appended, so a view never changes.

Each entry has the result's canonical bytes (the codec makes them) and a chain digest::

    chain(0) = 32 zero bytes
    chain(n) = SHA-256(chain(n - 1) + canonical bytes of result n)

Two histories with the same chain digest at the same length are the same history, in any store. The digest is computed
on request (1 µs a result); a save does not need it, because stores chain their records themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import fsum
from operator import attrgetter
from typing import Any, overload

import attrs

from flowckpt.core.system import external
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen

FAN_OUTS = frozenset({"map", "parallel"})
"""The types of steps whose steps may run in parallel."""
COMPOSITES = FAN_OUTS | {"workflow"}
"""The types of composite steps: their results only say how their steps ended, and do not count as steps."""


class LazyValue:
    """A recorded value that is decoded on access; the codec has the subclasses."""

    __slots__ = ()

    def value(self) -> Any:
        """Decode the value, a new one each time, so that no caller can change the record."""
        raise NotImplementedError  # pragma: no cover - abstract


def decode_held(held: Any) -> Any:
    """Return a held value, decoded if it is lazy."""
    return held.value() if isinstance(held, LazyValue) else held


UNREAD: Any = object()
"""Marks an output that must be decoded, or whose step needs further checks."""


@lazy_frozen(eq=False, repr=False)
class StepError(FieldEquality):
    """How a step or a run failed, as recorded.

    Attributes:
        type: the qualified name of the exception's class.
        message: `str()` of the exception.
        bases: the qualified names of the class and its bases up to `Exception`, most derived first.
        traceback: the formatted traceback.
        path: the step that failed, if the error comes from one.
        tries: the number of tries of that step.
        causes: the paths of the failed members of a fan-out.
        extra: unknown fields of a newer version, kept.
        remedy: the suggested fix, if the exception is one of flowckpt's own.
    """

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    path: str = ""
    tries: int = 1
    causes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    remedy: str = ""


# Filling a frozen class with slots takes twice as long: 1.1 µs against 0.5.
@attrs.frozen(slots=False, eq=False, repr=False)
class StepResult(FieldEquality):
    """The recorded result of one step: output or error, times, and identity.

    `output` is decoded without the function's annotation: a value of an attrs class appears as its fields.

    Attributes:
        name: the step's name as written.
        step_type: its action: `python`, `command`, `map`, `parallel`, `workflow`, `start`, `signal` …; `rollback` for undoing a
            step.
        success: whether it ended without an error.
        output: its output, decoded afresh at each access.
        duration_ms: how long it took, including all tries.
        error: how it failed, or None.
        path: its path in the run.
        started_at: when it was started.
        attempt: the attempt that executed it; 0 if a fork copied it.
        tries: the number of tries.
        function: `module:qualname` of its function; empty for actions without one.
        version: its `.version()` tag, or None.
        location: `file:line` of the `yield`.
        fingerprint: the identity of its function's code; empty if unknown.
        arguments: by parameter: numbers, booleans and None as they are, digests of others, `"?"` for what cannot be
            compared.
        evidence: its claims with their facts, and the verdicts when it ended; None without claims.
        marks: what a rerun must know: `at_most_once`, `on_rerun`, `undoable`, `adopted` (not run but proved done),
            `edited` (its output was replaced in a fork), `not_undone` (not run, because `.on_rerun()` failed),
            `not_started` (failed before its function was called).
        extra: unknown fields of a newer version, kept.
        signal: the id of the signal that the step took, or empty.
        figures: the numbers recorded by `current_step().record(…)`, by name: the sums of all calls and tries.
        source: the origin of a result that `.cache()` took: `workflow_id`, `path`, and `ended_at`; otherwise empty.
        published: the values that the step published, as recorded: by name, an object with `value` and `at`;
            `engine.published(run)` decodes the values.
        argument_values: the arguments of the call as JSON, by parameter, if the step has `.record_arguments()`; otherwise empty.
    """

    name: str
    step_type: str = "python"
    success: bool = True
    _output: Any = attrs.field(default=None, eq=decode_held, alias="output")
    duration_ms: float = 0.0
    error: StepError | None = None
    path: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))
    started_at: datetime | None = None
    attempt: int = 1
    tries: int = 1
    function: str = ""
    version: str | None = None
    location: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    evidence: Mapping[str, Any] | None = None
    marks: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    signal: str = ""
    figures: Mapping[str, int | float] = attrs.field(factory=dict)
    source: Mapping[str, str] = attrs.field(factory=dict)
    published: Mapping[str, Any] = attrs.field(factory=dict)
    argument_values: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def held_output(self) -> Any:
        """The output as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._output

    @property
    def output(self) -> Any:
        """The output of the step."""
        return decode_held(self._output)


_EMPTY: Mapping[str, Any] = {}

for _field in attrs.fields(StepResult):  # attrs leaves no defaults on the class; `run_in_place` needs them
    if _field.default is None or isinstance(_field.default, str | int | float | tuple):
        setattr(StepResult, _field.name, _field.default)
StepResult.arguments = StepResult.extra = StepResult.figures = StepResult.source = StepResult.published = _EMPTY
StepResult.argument_values = _EMPTY
# NOTE: made without `__init__` for speed; measured by `python -m benchmarks --only users`, a further finished step.
_new, _set = object.__new__, object.__setattr__


def result_of(fields: dict[str, Any]) -> StepResult:
    """Return a result that owns a dict of fields: 0.3 µs, where setting all fields takes 0.7.

    Args:
        fields: the fields by name, including `_output`; at least `name` and `path`. Unknown names are not detected.
    """
    result = _new(StepResult)
    _set(result, "__dict__", fields)
    return result


def sum_figures(results: Iterable[StepResult]) -> dict[str, int | float]:
    """Return the sum of each figure of results; floats are added exactly, so their order does not matter."""
    by_name = figures_by_name(result.figures for result in results if result.figures)
    return {name: sum_numbers(values) for name, values in by_name.items()}


def figures_by_name(recorded: Iterable[Mapping[str, int | float]]) -> dict[str, list[int | float]]:
    """Return all values of each figure."""
    found: dict[str, list[int | float]] = {}
    for figures in recorded:
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    return found


def sum_numbers(values: Sequence[int | float]) -> int | float:
    """Return the sum of numbers: exact for integers, correctly rounded otherwise."""
    return sum(values) if all(type(value) is int for value in values) else fsum(values)


# The state that a running step saved, and the identity of that step.


@lazy_frozen(eq=False, repr=False)
class PartialState(FieldEquality):
    """The state that a step saved by `current_step().save(…)`, kept until the step succeeds.

    Attributes:
        state: the state, decoded afresh at each access.
        function: `module:qualname` of the step's function.
        fingerprint: the identity of its code; empty if unknown.
        arguments: its arguments, in the form of `StepResult.arguments`.
        version: its `.version()` tag, or None.
    """

    _state: Any = attrs.field(eq=decode_held, alias="state")
    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    version: str | None = None

    @property
    def held_state(self) -> Any:
        """The state as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._state

    @property
    def state(self) -> Any:
        """The state that the step saved."""
        return decode_held(self._state)


CHAIN_START = bytes(32)


class History:
    """The append-only sequence of results that the checkpoints of one run share.

    Attributes:
        results: the results.
        blobs: large values by the index of their result: digest to blob.
        read_as: data of the store that read it, kept as long as the history.
    """

    __slots__ = (
        "__weakref__",
        "_chains",
        "_encoded",
        "_ended",
        "_forked_at",
        "_forked_from",
        "_notable",
        "_read_to",
        "_unsplit",
        "blobs",
        "read_as",
        "results",
    )

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self._notable: list[
            int
        ] = []  # indexes among the results read by a store; all results appended since are notable
        self._read_to = 0
        self._ended: tuple[Any, frozenset[str]] = (None, frozenset())
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
        """Return the canonical bytes of a range of results, without splitting those of others."""
        is_split = not self._unsplit or self._unsplit[-1][1] <= start or start >= stop
        return (self._encoded if is_split else self.encoded)[start:stop]

    def chain_at(self, length: int) -> bytes:
        """Return the chain digest of the first `length` results."""
        chains, encoded, sha256 = self._chains, self.encoded, external.hashlib.sha256
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
        self,
        results: Sequence[StepResult],
        blobs: Mapping[int, Mapping[str, Any]],
        split: Callable[[], list[bytes]],
        notable: Iterable[int] | None = None,
    ) -> None:
        """Append results that a store has read, whose canonical bytes are rarely needed again.

        Args:
            results: the results.
            blobs: the large values that results refer to, by the index of the result here, then by digest.
            split: returns their canonical bytes.
            notable: the indexes of the results that are not known to be plain; all by default.
        """
        start = len(self.results)
        self._notable += range(self._read_to, start)
        self._notable += [start + place for place in (range(len(results)) if notable is None else notable)]
        self.results += results
        self._read_to = len(self.results)
        for place, held in blobs.items():
            self.blobs[start + place] = held
        self._encoded += [b""] * len(results)
        self._unsplit.append((start, len(self.results), split))

    def forked(self, length: int) -> History:
        """Return a new history of the first `length` results, which can continue differently."""
        fork = History()
        fork.results = self.results[:length]
        fork._notable = self._notable[: bisect_left(self._notable, length)]
        fork._read_to = min(self._read_to, length)
        fork._encoded = self._encoded[:length]
        fork._unsplit = [(start, min(stop, length), split) for start, stop, split in self._unsplit if start < length]
        fork.blobs = {index: blobs for index, blobs in self.blobs.items() if index < length}
        fork._forked_from, fork._forked_at = self, length
        return fork

    def notable(self, length: int | None = None) -> list[StepResult]:
        """Return the results, of the first `length` or of all, that may not be plain.

        A plain result is that of a Python step that succeeded, without evidence, marks, signal or figures, and undoes nothing.
        """
        stop = len(self.results) if length is None else length
        read = self._notable[: bisect_left(self._notable, stop)]
        return [self.results[index] for index in read] + self.results[self._read_to : stop]

    def ended(self, paths: Iterable[str], length: int) -> frozenset[str]:
        """Return which paths have a result among the first `length`; the last answer is cached."""
        asked = frozenset(paths)
        before, known = self._ended
        if before != (asked, length):
            known = asked.intersection(map(attrgetter("path"), islice(self.results, length))) if asked else asked
            self._ended = (asked, length), known
        return known

    def view(self, length: int | None = None) -> HistoryView:
        """Return a view of the first `length` results; of all by default."""
        return HistoryView(self, len(self.results) if length is None else length)

    def known_to_share(self, other: History) -> int:
        """Return the number of results that two histories share because of a common origin."""
        if self is other:
            return len(self.results)
        if self._forked_from is other:
            return self._forked_at
        return other._forked_at if other._forked_from is self else 0


class HistoryView(Sequence[StepResult]):
    """The first n results of a history, as an immutable sequence created in constant time.

    Attributes:
        history: the history.
        length: the number of results; what `len()` returns.
    """

    __slots__ = ("history", "length")

    def __init__(self, history: History, length: int) -> None:
        self.history = history
        self.length = length

    def notable(self) -> list[StepResult]:
        """Return the results that may not be plain."""
        return self.history.notable(self.length)

    def ended(self, paths: Iterable[str]) -> frozenset[str]:
        """Return which paths have a result."""
        return self.history.ended(paths, self.length)

    @property
    def chain(self) -> bytes:
        """The chain digest of these results."""
        return self.history.chain_at(self.length)

    def shared_length(self, other: HistoryView) -> int:
        """Return the length of the common prefix of two histories."""
        length = min(self.length, other.length)
        known = self.history.known_to_share(other.history)
        if known >= length:
            return length
        mine, others = self.history.encoded, other.history.encoded
        return next((index for index in range(known, length) if mine[index] != others[index]), length)

    def continues(self, other: HistoryView) -> bool:
        """Return whether this history starts with the other."""
        if self.history is other.history:
            return self.length >= other.length
        return self.shared_length(other) == other.length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> StepResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StepResult]: ...
    def __getitem__(self, index: int | slice) -> StepResult | Sequence[StepResult]:
        if isinstance(index, slice):
            return [self.history.results[i] for i in range(*index.indices(self.length))]
        if not -self.length <= index < self.length:
            raise IndexError(index)
        return self.history.results[index + self.length if index < 0 else index]

    def __iter__(self) -> Iterator[StepResult]:
        return islice(self.history.results, self.length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by value, and results may contain unhashable values

    def __repr__(self) -> str:
        return f"<history of {self.length} results>"
