"""The running step as seen by its own function: its identity, its progress and its saved state."""

from __future__ import annotations

import asyncio
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar, overload

import attrs

from flowckpt.core import dsl
from flowckpt.core.codec import decode, dumps, encode
from flowckpt.core.codec.tags import LARGEST, SMALLEST
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.checks import check_published_name
from flowckpt.core.dsl.modifiers import PLAIN, Modifiers
from flowckpt.core.dsl.step import Action
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.identity.values import value_parts
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.core.system.process import find_holders, find_marked
from flowckpt.errors import EncodingError, FlowckptError, InputError

T = TypeVar("T")


class StepServices:
    """The services of the engine for a running step.

    These are those of code that is not a recorded step: progress is ignored, saves are refused. `RunServices` of
    `flowckpt.engine.run.progress` serves the steps of a run, `RemoteStepServices` those in a worker.

    Args:
        where: what happens in this code, for the error.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    @property
    def birth(self) -> str:
        """The `birth` of the run; empty outside of one."""
        return ""

    def progress(self, current: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Do nothing: progress is only shown."""

    def record(self, current: CurrentStep, figures: Mapping[str, Any]) -> None:
        """Check the figures and drop them: no result records them."""
        validate_figures(figures)

    def save(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Refuse.

        Raises:
            FlowckptError: always.
        """
        self._refuse(current, "save")

    def publish(self, current: CurrentStep, name: str, value: Any) -> None:
        """Refuse; see `save`."""
        self._refuse(current, "publish")

    def publish_recorded(self, current: CurrentStep, published: Any) -> None:
        """Refuse; see `save`."""
        self._refuse(current, "publish")

    def _refuse(self, current: CurrentStep, what: str) -> None:
        raise FlowckptError(
            f"current_step().{what}() was called in {current.path!r}, where {self._where}",
            remedy=f"Call {what}() in the function of the step itself.",
        )

    async def save_async(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Refuse; see `save`."""
        self.save(current, state, as_type)

    def load(self, current: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the last saved state of a step.

        Args:
            current: the call of the step.
            default: returned if there is no saved state.
            as_type: the type to decode it as, or None.

        Raises:
            DecodingError: the saved state does not fit the type.
        """
        state = self.find_state(current.path)
        if not state:
            return default
        return decode(state[0], Any if as_type is None else as_type, place=state_place(current.path))

    @property
    def is_followed(self) -> bool:
        """Whether the progress of steps is shown anywhere: not that of this code."""
        return False

    def find_state(self, path: str) -> tuple[Any, ...]:
        """Return the encoded partial state of a step; nothing if it has saved none."""
        return ()

    async def save_recorded(self, current: CurrentStep, tree: Any) -> None:
        """Refuse to make an encoded partial state durable; see `save`."""
        self.save(current, tree, None)


NO_SERVICES = StepServices("a step is undone or adopted")


@attrs.define(eq=False, repr=False)
class StepCall:
    """One try of a step.

    Attributes:
        workflow_id: the run.
        path: the path of the step.
        attempt: the attempt of the run.
        tries: which try of the step this is, from 1.
        step: the step.
        action: its action.
        modifiers: its modifiers.
        identity: what identifies the call.
        services: the engine's services for the step.
        location: the place of the step in the code.
        generation: the generation of the run.
        since: when its first try of this attempt started.
        done: the last progress reported by this try.
    """

    workflow_id: str
    path: str
    attempt: int
    tries: int
    step: Step[Any]
    action: Action
    modifiers: Modifiers
    identity: CallIdentity
    services: StepServices
    location: str = ""
    generation: int = 1
    since: datetime | None = None
    done: Progress | None = attrs.field(init=False, default=None)

    @classmethod
    def first(cls, workflow_id: str, path: str, attempt: int, step: Step[Any], *rest: Any) -> StepCall:
        """Return the first try of a step; `rest` are the fields after the modifiers."""
        return cls(workflow_id, path, attempt, 1, step, step.action, step.modifiers, *rest)


@lazy_frozen()
class CurrentStep:
    """The running step, from the point of view of its function.

    Attributes:
        workflow_id: its run.
        path: its path in the run.
        attempt: the attempt of the run, from 1.
        tries: the number of this try, from 1.
    """

    workflow_id: str
    path: str
    attempt: int
    tries: int
    _arguments: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    _services: StepServices = attrs.field(default=NO_SERVICES, repr=False)
    _max_tries: int | None = attrs.field(default=1, repr=False)
    _call: StepCall | None = attrs.field(default=None, repr=False)  # None in a worker: the step stays in the engine
    _generation: int = attrs.field(default=1, repr=False)

    @classmethod
    def of(cls, call: StepCall) -> CurrentStep:
        """Return the view of a call that the step's function gets."""
        retry = call.modifiers.retry
        max_tries = 1 if retry is None else retry.attempts
        run, arguments = call.workflow_id, call.identity.arguments
        return cls(run, call.path, call.attempt, call.tries, arguments, call.services, max_tries, call, call.generation)

    @property
    def max_tries(self) -> int | None:
        """The number of tries that `.retry()` allows, or 1; None for any number."""
        return self._max_tries

    @property
    def idempotency_key(self) -> str:
        """A key of 32 characters for services that execute a request once: the same in every try, attempt and process.

        It is derived from the run id, the generation of the run, the step's path and its arguments. Values
        that the function holds do not count.
        """
        generation = [self._generation] if self._generation > 1 else []
        identity = dumps([self.workflow_id, *generation, self.path, dict(sorted(value_parts(self._arguments).items()))])
        return urlsafe_b64encode(sha256(identity.encode()).digest()[:24]).decode()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report the progress of the step, emitted as `StepProgress`; nothing is recorded.

        Call it as often as you like, from any thread of the step and from async code: only the newest report counts,
        emitted a few times per second at most. `flowckpt show`, `list` and `ui` show it while the step runs. Without a
        listener, it costs next to nothing.

        Args:
            done: the amount done, in your own unit.
            total: the total amount; None if unknown.
            note: what the step is doing, in a few words.

        Raises:
            InputError: a number is invalid or negative, or the note is not text.
        """
        self._services.progress(self, done, total, note)

    def record(self, **figures: float) -> None:
        """Add figures of this step to its result, such as `tokens=1200, cost_usd=0.02, rows=10_000`.

        The values of one name are added up: over the calls and the tries of the step, and over the steps of the run. They are
        stored with the step's result, also if the step fails. Call it from any thread of the step and from async code.

        Args:
            figures: finite numbers by name; integers stay integers while they fit into 64 bits.

        Raises:
            InputError: a value or a sum is not a finite number, or a name is empty; nothing was added.
            FlowckptError: this try of the step has ended, or this is a process that the step started itself.
        """
        self._services.record(self, figures)

    def publish(self, name: str, value: Any) -> None:
        """Publish a value of this step; see `flowckpt.publish`. Call it from any thread of the step and from async code.

        Args:
            name: the name, up to 200 characters; the last value of a name counts.
            value: what a step can return without an annotation, up to 64 kB of JSON.

        Raises:
            EncodingError: the value cannot be recorded, is too large, or holds a secret; nothing was published.
            StepDefinitionError: the name is not text, is blank, or is too long.
            FlowckptError: the step is ephemeral or has ended, or this is a process that the step started itself.
        """
        self._services.publish(self, name, value)

    def save(self, state: Any, *, as_type: Any = None) -> None:
        """Save partial state, from which a later try or attempt can continue; durable when this returns.

        Each save replaces the previous one; the state is dropped when the step succeeds. In async steps, await
        `save_async` instead.

        Args:
            state: JSON's types and the other types that records hold; with `as_type` also what that type can hold.
            as_type: the type by which the state is encoded, such as an attrs class.

        Raises:
            EncodingError: the state cannot be recorded; nothing was saved.
            FlowckptError: the step is ephemeral or has ended, or this code runs in an event loop.
            ExecutorError: the step's executor has no connection to the engine, or lost it.
            CheckpointStorageError: the store failed; the run ends with this error, whatever the step does.
        """
        self._services.save(self, state, as_type)

    async def save_async(self, state: Any, *, as_type: Any = None) -> None:
        """Save partial state in an async step; see `save`."""
        await self._services.save_async(self, state, as_type)

    @overload
    def load(self) -> Any: ...
    @overload
    def load(self, default: T) -> T: ...
    @overload
    def load(self, default: T, *, as_type: type[T]) -> T: ...
    @overload
    def load(self, default: None = None, *, as_type: type[T]) -> T | None: ...
    def load(self, default: Any = None, *, as_type: Any = None) -> Any:
        """Return the partial state that an earlier try or attempt saved last; a fresh value each time.

        Args:
            default: what to return if nothing was saved.
            as_type: the type to restore, as given to `save`.

        Raises:
            DecodingError: the state does not fit the type.
        """
        return self._services.load(self, default, as_type)


_current: ContextVar[StepCall | CurrentStep | None] = ContextVar("flowckpt_current_step", default=None)

get_call = _current.get
"""Return the running step; None if no step runs."""

set_call = _current.set
"""Set the running step, in this context and in copies of it; None if no step runs."""


STEP_MARK = "_FLOWCKPT_STEP"
"""The environment variable by which a command that outlives its engine is found."""


def mark_of_step(birth: str, path: str) -> str:
    """Return the value of `STEP_MARK` for a step of a run; an edit of its arguments does not change it."""
    return sha256(dumps([birth, path]).encode()).hexdigest()[:32]


def find_at_work(birth: str, path: str) -> list[int] | None:
    """Return the processes that still run a step for another engine: its command, or its worker on this machine.

    Args:
        birth: the `birth` of the run; a copy has the same.
        path: the step.

    Returns:
        Their pids; None if no process can be seen.
    """
    mark = mark_of_step(birth, path)
    commands, workers = find_marked(f"{STEP_MARK}={mark}"), find_holders(mark)
    return [*(commands or ()), *workers] if workers else commands


@lazy_frozen()
class StepBaggage:
    """Values that travel with a running step to its worker or command; a listener sets them in the step's context.

    Attributes:
        variables: added to the environment of a command step.
        parcel: a pickled context manager, entered around the function in a worker. A worker that cannot read it ignores
            it.
    """

    variables: Mapping[str, str] = attrs.field(factory=dict)
    parcel: bytes = b""


step_baggage: ContextVar[StepBaggage | None] = ContextVar("flowckpt_step_baggage", default=None)
"""The baggage of the step that runs in this context, or None."""


def current_step() -> CurrentStep:
    """Return the running step. Call it inside a step's function, in the thread or task that runs it.

    Raises:
        FlowckptError: no step of flowckpt is running here.
    """
    call = get_call()
    if call is None:
        raise FlowckptError(
            "current_step() was called where no step is running",
            remedy="Call it inside the function of a step, in the thread or task that runs it.",
        )
    return call if isinstance(call, CurrentStep) else CurrentStep.of(call)


def publish(name: str, value: Any) -> Step[None]:
    """Publish a named value, such as a draft or an estimate, that anyone can read: `engine.published(run)`, `flowckpt show`.

    In the function of a step, the call publishes the value. In a workflow, it creates a step: `yield publish("draft", text)`. The
    last value of a name counts. It can be read at once, is recorded with the step that published it, and stays readable
    after the end of the run.

    Args:
        name: the name, up to 200 characters.
        value: what a step can return without an annotation, up to 64 kB of JSON.

    Raises:
        EncodingError: in a step, the value cannot be recorded, is too large, or holds a secret; in a workflow, the step fails.
        StepDefinitionError: the name is not text, is blank, or is too long.
        FlowckptError: the step that calls it is ephemeral or has ended.
    """
    if get_call() is None:
        return dsl.world.publish_step(name, value)
    current_step().publish(name, value)
    return Step(name, PLAIN, dsl.world.PublishAction(name, value))  # a step of its own, which needs no further call


_MOST_PUBLISHED = 1 << 16


def state_place(path: str) -> str:
    """Return the place of a step's saved state, for messages."""
    return f"{path}: saved state"


def encode_state(current: CurrentStep, state: Any, as_type: Any) -> Any:
    """Return a state in recorded form, which later changes of the object do not affect.

    Raises:
        EncodingError: the state cannot be recorded.
    """
    return encode(state, Any if as_type is None else as_type, place=state_place(current.path))


def encode_published(current: CurrentStep, name: str, value: Any) -> Any:
    """Return a published value in recorded form.

    Raises:
        EncodingError: the value cannot be recorded, or is too large.
        StepDefinitionError: the name is not text, is blank, or is too long.
    """
    place = f"{current.path}: published {check_published_name(name)!r:.80}"
    tree = encode(value, place=place)
    if (size := len(dumps(tree))) > _MOST_PUBLISHED:
        raise EncodingError(
            f"{place} has {size:,} bytes of JSON; the limit for a published value is {_MOST_PUBLISHED:,}",
            place=place,
            remedy="Publish a part of it, or write it to a file and publish the path.",
        )
    return tree


# Validation of what a step reports while it runs: the same in the engine and in a worker.


Progress = tuple[float, float | None, str]
"""How much is done, how much there is in total, and a note."""


def validate_progress(done: Any, total: Any, note: Any) -> Progress:
    """Return the progress of a step as JSON values.

    Args:
        done: how much is done.
        total: how much there is, or None.
        note: a short text.

    Raises:
        InputError: a number is invalid or negative, or the note is not text.
    """
    done, total = _require_number("done", done), None if total is None else _require_number("total", total)
    if not isinstance(note, str):
        raise InputError(f"the note of progress() is {note!r:.80} ({type(note).__name__}), not text", parameter="note")
    return done, total, note


Figures = Mapping[str, int | float]
"""Numbers by name, as recorded by `current_step().record(…)`."""

_MOST_NAME = 200
_MOST_FIGURE = 1e300  # so that no sum of a run overflows


def validate_figures(figures: Mapping[str, Any]) -> dict[str, int | float]:
    """Return figures as JSON values.

    Raises:
        InputError: a value is not a finite number, or a name is empty or too long.
    """
    numbers: dict[str, int | float] = {}
    for name, value in figures.items():
        if not 0 < len(name) <= _MOST_NAME:
            raise InputError(
                f"record() got a figure with the name {name!r:.80}", parameter="", remedy="Give it a short name."
            )
        number = _to_number(value)
        if number is None or abs(number) > _MOST_FIGURE:
            is_too_large = number is not None
            why = f"is beyond {_MOST_FIGURE:g}" if is_too_large else "is not a finite number"
            raise InputError(
                f"record({name}=…) got {value!r:.80} ({type(value).__name__}), which {why}",
                parameter=name,
                remedy="Record it in a larger unit." if is_too_large else "Pass an int or a float.",
            )
        numbers[name] = number
    return numbers


def add_figures(total: dict[str, int | float], figures: Figures) -> None:
    """Add figures to a total in place.

    Raises:
        InputError: a sum is not finite; nothing was added.
    """
    sums = {name: _to_number(total.get(name, 0) + value) for name, value in figures.items()}
    for name, value in sums.items():
        if value is None or abs(value) > _MOST_FIGURE:
            raise InputError(f"the sum of the figure {name!r:.80} is too large", parameter=name)
    total.update({name: value for name, value in sums.items() if value is not None})


def find_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of this thread; None without one."""
    if "asyncio" not in sys.modules:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def save_in_loop_error(path: str) -> FlowckptError:
    """Return the error of a step that calls `save()` in an event loop, which it would block."""
    return FlowckptError(
        f"current_step().save() was called in {path!r} by code that runs in the event loop",
        remedy="Write 'await current_step().save_async(state)'.",
    )


def ended_try_error(path: str, tries: int) -> FlowckptError:
    """Return the error of a call from a try that has ended, such as by a thread that it started."""
    return FlowckptError(
        f"try {tries} of step {path!r} has ended: it can neither save nor record",
        remedy="Save before the function returns, and wait for the threads that it has started.",
    )


def _require_number(name: str, value: Any) -> float:
    """Return a number as a JSON value; numbers of other libraries are converted."""
    number = _to_number(value)
    if number is None or number < 0:
        raise InputError(
            f"{name} of progress() is {value!r:.80} ({type(value).__name__}), not a number of at least 0",
            parameter=name,
            remedy="Pass how much is done, and how much there is in total.",
        )
    return number


def _to_number(value: Any) -> int | float | None:
    """Return a finite number as a JSON value, also one of another library; None for any other value."""
    number: int | float | None = None
    if not isinstance(value, bool | str | bytes):
        try:
            number = value.__index__() if hasattr(type(value), "__index__") else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
    if type(number) is int and not SMALLEST <= number < LARGEST:
        number = float(number) if is_finite_number(number) else None
    return number if is_finite_number(number) else None
