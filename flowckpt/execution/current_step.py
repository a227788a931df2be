"""What a step can know of itself while it runs, what it can tell, and what it can save."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Protocol, TypeVar, overload

import attrs

from flowckpt.codec import dumps
from flowckpt.dsl import Step
from flowckpt.errors import FlowckptError
from flowckpt.execution.current import told_now

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


class EngineDesk(Desk, Protocol):
    """The desk in the process of the engine, which hears also of what was handed in in another one."""

    @property
    def is_followed(self) -> bool:
        """Whether anybody follows the run, so that progress is worth telling."""
        ...

    def held(self, path: str) -> tuple[Any, ...]:
        """Return the partial state of a step as it is recorded; nothing where it has saved none."""
        ...

    async def save_recorded(self, now: CurrentStep, tree: Any) -> None:
        """Make durable what is in the form of the record already; called in the loop."""
        ...


@attrs.frozen(eq=False, repr=False)
class NoDesk:
    """Where nothing that a step hands in could serve: there is nothing to go on with.

    Attributes:
        where: what goes on there, for the error.
    """

    where: str

    def progress(self, now: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Do nothing: what is told is how far a step is."""

    def save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Refuse.

        Raises:
            FlowckptError: always.
        """
        raise FlowckptError(
            f"current_step().save() was called in {now.path!r}, where {self.where}",
            remedy="Save in the function of the step itself.",
        )

    async def save_async(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Refuse; see `save`."""
        self.save(now, state, as_type)

    def load(self, now: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the default."""
        return default

    @property
    def is_followed(self) -> bool:
        """Nobody follows."""
        return False

    def held(self, path: str) -> tuple[Any, ...]:
        """Return nothing."""
        return ()

    async def save_recorded(self, now: CurrentStep, tree: Any) -> None:
        """Refuse; see `save`."""
        self.save(now, tree, None)


NO_DESK = NoDesk("a step is undone or adopted")


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
    _desk: Desk = attrs.field(default=NO_DESK, repr=False)
    _most_tries: int = attrs.field(default=1, repr=False)

    @property
    def max_tries(self) -> int:
        """How many tries the step has in all: what `.retry()` says, or 1."""
        if self._step is None:  # it stays in the engine
            return self._most_tries
        retry = self._step.modifiers.retry
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
            FlowckptError: the step is ephemeral, or has ended, or this is code that runs in an event loop.
            ExecutorError: the step runs on an executor that has no way back to the engine, or the way is gone.
            CheckpointStorageError: the store failed; the run ends with it, whatever the step does then.
        """
        self._desk.save(self, state, as_type)

    async def save_async(self, state: Any, *, as_type: Any = None) -> None:
        """Save what the step needs to go on from here, in an async step; see `save`."""
        await self._desk.save_async(self, state, as_type)

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
        return self._desk.load(self, default, as_type)


def current_step() -> CurrentStep:
    """Return the step that is running; to be called inside it.

    Raises:
        FlowckptError: no step of flowckpt is running here.
    """
    told = told_now()
    if told is None:
        raise FlowckptError(
            "current_step() was called where no step is running",
            remedy="Call it inside the function of a step, in the thread or task that runs it.",
        )
    return CurrentStep(*told)
