"""What a step can know of itself while it runs, what it can tell, and what it can save."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Protocol, TypeVar, overload

import attrs

from flowckpt.codec import dumps
from flowckpt.dsl import Step
from flowckpt.errors import FlowckptError

T = TypeVar("T")


class Desk(Protocol):
    """Where the steps of an attempt hand in what they tell and save; the engine's, see `flowckpt.engine.desk`."""

    def progress(self, now: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Tell how far a step is."""
        ...

    def save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable."""
        ...

    async def save_async(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Do it from code that runs in the loop."""
        ...

    def load(self, now: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the partial state of a step."""
        ...


@attrs.frozen
class CurrentStep:
    """The step that is running.

    Attributes:
        workflow_id: its run.
        path: its place in the run.
        attempt: the attempt of the run, from 1.
        tries: which try of the step this is, from 1.
    """

    workflow_id: str
    path: str
    attempt: int
    tries: int
    _arguments: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    _step: Step[Any] | None = attrs.field(default=None, repr=False)
    _code: str = attrs.field(default="", repr=False)
    _desk: Desk | None = attrs.field(default=None, repr=False)

    @property
    def max_tries(self) -> int:
        """How many tries the step has in all: what `.retry()` says, or 1."""
        retry = None if self._step is None else self._step.modifiers.retry
        return 1 if retry is None else retry.attempts

    @property
    def idempotency_key(self) -> str:
        """A key for services that do a request once: the same in every try, every attempt and every process.

        It is made of the run's id, the step's path and its arguments; another request gets another key.
        """
        told = dumps([self.workflow_id, self.path, dict(sorted(self._arguments.items()))])
        return urlsafe_b64encode(sha256(told.encode()).digest()[:24]).decode()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far the step is; whoever follows the run sees it. Nothing is recorded.

        Call it as often as you like, from any thread of the step and from async code: the newest counts, and it is told
        a few times a second at most. Where nobody follows the run, it costs next to nothing.

        Args:
            done: how much is done, in a unit of your own.
            total: how much there is; None where you do not know.
            note: what the step is at, in a few words.

        Raises:
            InputError: a number is none, or negative; or the note is no text.
        """
        if self._desk is not None:
            self._desk.progress(self, done, total, note)

    def save(self, state: Any, *, as_type: Any = None) -> None:
        """Save what the step needs to go on from here; it is durable when this returns.

        The step's next try, and a resume of the run, find it with `load`. Each save replaces the one before. It is dropped
        when the step has ended well. From code that runs in the loop (an async step), await `save_async` instead.

        Args:
            state: JSON's types and the closed set of flowckpt; with `as_type` also what that type can hold.
            as_type: the type by which it is written, such as an attrs class.

        Raises:
            EncodingError: the state cannot be recorded; nothing was saved.
            FlowckptError: the step is ephemeral, or has ended, or this is the engine's loop.
            CheckpointStorageError: the store failed; the run ends with it, whatever the step does then.
        """
        self._with_desk("save").save(self, state, as_type)

    async def save_async(self, state: Any, *, as_type: Any = None) -> None:
        """Save what the step needs to go on from here, in an async step; see `save`."""
        await self._with_desk("save_async").save_async(self, state, as_type)

    @overload
    def load(self) -> Any: ...
    @overload
    def load(self, default: T) -> T: ...
    @overload
    def load(self, default: T, *, as_type: type[T]) -> T: ...
    @overload
    def load(self, default: None = None, *, as_type: type[T]) -> T | None: ...
    def load(self, default: Any = None, *, as_type: Any = None) -> Any:
        """Return what the step saved last, in an earlier try or an earlier attempt; a fresh value each time.

        Args:
            default: what to return where it has saved nothing.
            as_type: the type to build of it, as it was saved with.

        Raises:
            DecodingError: what was saved does not fit the type.
        """
        return default if self._desk is None else self._desk.load(self, default, as_type)

    def _with_desk(self, method: str) -> Desk:
        if self._desk is None:
            raise FlowckptError(
                f"current_step().{method}() was called in {self.path!r}, where a step is undone or adopted",
                remedy="Save in the function of the step itself.",
            )
        return self._desk


Told = tuple[str, str, int, int, Mapping[str, Any], Step[Any] | None, str, Desk | None]

_current: ContextVar[Told | None] = ContextVar("flowckpt_current_step", default=None)

tell_current = _current.set
"""Say which step runs now, in this context and those that are copied from it; None for none.

It is told as a bare tuple of the fields of `CurrentStep`: few steps ask, and making one takes 0.6 µs.
"""


def current_step() -> CurrentStep:
    """Return the step that is running; to be called inside it.

    Raises:
        FlowckptError: no step of flowckpt is running here.
    """
    told = _current.get()
    if told is None:
        raise FlowckptError(
            "current_step() was called where no step is running",
            remedy="Call it inside the function of a step, in the thread or task that runs it.",
        )
    return CurrentStep(*told)
