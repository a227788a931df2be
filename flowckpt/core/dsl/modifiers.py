"""The modifiers of a step, checked and kept as values."""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import attrs

from flowckpt.core.dsl.checks import step_error
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.errors import StepDefinitionError


@attrs.frozen(eq=False, repr=False)
class _ModifierFacts(FieldEquality):
    """Facts derived once from the modifiers of a step, because each is read several times per step."""

    is_plain: bool = attrs.field(init=False, eq=False, repr=False)
    is_light: bool = attrs.field(init=False, eq=False, repr=False)


@attrs.frozen(eq=False, repr=False)
class Modifiers(_ModifierFacts):
    """The modifiers of one step.

    Attributes:
        has_checkpoint: whether a checkpoint is taken after the step.
        checkpoint_id: the id of the checkpoint, or None for the step's path.
        retry: its retry policy, or None.
        timeout_seconds: the time limit of one try, or None.
        is_ephemeral: whether the step is never recorded, and runs at each replay.
        version: the tag of `.version()`, or None.
        evidence: the claims of `.evidence()`, or None.
        files: the files of `.reads()` and `.writes()`, or None.
        is_at_most_once: whether a try is marked durably before it starts, and never repeated on a guess.
        adopt: rebuilds the result of a step that is proved done but was never recorded, or None.
        on_rerun: undoes the recorded effect before the step runs again, or None.
        rollback: undoes the effect when the run fails or is cancelled, or None.
        placement: the executor, or None for the engine's choice.
        cache_seconds: the maximum age of a result taken from another run; infinity for any age, None to take none.
        content: `secret` if the output is neither shown nor recorded, which makes the step ephemeral; `arguments` if
            the arguments are recorded as JSON; otherwise empty.
        is_plain: whether there is no modifier except a checkpoint, as in nearly every step.
        is_light: whether nothing is checked at the `yield`, and a restore needs only the recorded result.
    """

    has_checkpoint: bool = False
    checkpoint_id: str | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    is_ephemeral: bool = False
    version: str | None = None
    evidence: ClaimedEvidence | None = None
    files: StepFiles | None = None
    is_at_most_once: bool = False
    adopt: Callable[..., Any] | None = None
    on_rerun: Callable[[Any], Any] | None = None
    rollback: Callable[[Any], Any] | None = None
    placement: Placement | None = None
    cache_seconds: float | None = None
    content: str = ""

    def __attrs_post_init__(self) -> None:
        others = (self.adopt, self.rollback, self.files, self.placement)
        is_light = not self.is_ephemeral and all(each is None for each in others)
        object.__setattr__(self, "is_plain", _REST(self) == _NOTHING)
        object.__setattr__(self, "is_light", is_light)

    @property
    def is_secret(self) -> bool:
        """Whether the output is neither shown nor recorded."""
        return self.content == "secret"

    def first_of(self, names: Collection[str]) -> str:
        """Return the first given modifier among `names`, except `checkpoint` and `version`; empty if there is none."""
        given = {
            "retry": self.retry is not None,
            "timeout": self.timeout_seconds is not None,
            "secret" if self.is_secret else "ephemeral": self.is_ephemeral,
            "evidence": self.evidence is not None,
            self.files.word if self.files else "": self.files is not None,
            "at_most_once": self.is_at_most_once,
            "adopt": self.adopt is not None,
            "on_rerun": self.on_rerun is not None,
            "rollback": self.rollback is not None,
            "on": self.placement is not None,
            "cache": self.cache_seconds is not None,
            "record_arguments": self.content == "arguments",
        }
        return next((name for name, is_given in given.items() if is_given and name in names), "")

    @property
    def needs_recorded_result(self) -> bool:
        """Whether the step needs its recorded result before it runs again."""
        return self.is_at_most_once or self.on_rerun is not None


_FIELDS = [each for each in attrs.fields(Modifiers) if each.init][2:]  # without those of the checkpoint
_REST: Callable[[Modifiers], tuple[Any, ...]] = operator.attrgetter(*(each.name for each in _FIELDS))
_NOTHING: tuple[Any, ...] = tuple(each.default for each in _FIELDS)

PLAIN = Modifiers()
CHECKPOINTED = Modifiers(has_checkpoint=True)


def check_combination(name: str, modifiers: Modifiers) -> Modifiers:
    """Return the modifiers if they do not contradict each other.

    Raises:
        StepDefinitionError: one of them needs a record, and another prevents it.
    """
    if modifiers.cache_seconds is not None:
        _refuse_uncacheable(name, modifiers)
    if not modifiers.is_ephemeral:
        return modifiers
    remedy = "An ephemeral step is never recorded and runs at each replay; remove one of the two."
    kind = "ephemeral"
    if modifiers.is_secret:
        kind = "secret"
        remedy = (
            "The output of a secret step is never recorded, and the step runs at each replay; remove one of the two."
        )
    if modifiers.has_checkpoint:
        raise step_error(
            name,
            f"it is .{kind}() and has a .checkpoint()",
            f"{'A secret' if modifiers.is_secret else 'An ephemeral'} step is never recorded; put the checkpoint on "
            "the step before it.",
        )
    refused = {*_OF_RECORDED, "adopt"} if modifiers.is_secret else _OF_RECORDED
    if which := modifiers.first_of(refused):
        raise step_error(name, f"it is .{kind}() and has .{which}()", remedy)
    return modifiers


_OF_RECORDED = ("at_most_once", "on_rerun", "rollback", "reads", "writes", "record_arguments", "on")
"""The modifiers that an ephemeral step cannot have: its output never leaves the engine's process."""

_UNCACHEABLE = {
    "secret": "its output is never recorded",
    "ephemeral": "its output is never recorded",
    "at_most_once": "its effect must happen in this run",
    "on_rerun": "this run must not undo the effect of another one",
    "rollback": "this run must not undo the effect of another one",
}


def _refuse_uncacheable(name: str, modifiers: Modifiers) -> None:
    if which := modifiers.first_of(_UNCACHEABLE):
        why = f"a cached step may take the result of another run, and {_UNCACHEABLE[which]}"
        raise step_error(name, f"it is .cache() and has .{which}()", f"Remove one of the two: {why}.")


def age_in_seconds(name: str, age: float | timedelta | None) -> float:
    """Return the argument of `.cache()` in seconds; infinity for any age.

    Raises:
        StepDefinitionError: it is not above 0.
    """
    seconds = to_seconds(age)
    if seconds is None:
        return math.inf
    if not is_finite_number(seconds) or seconds <= 0:
        raise step_error(
            name,
            f".cache(max_age={seconds!r:.80}) must be seconds above 0, or a timedelta",
            "Write .cache(max_age=3600), or .cache() for a result of any age.",
        )
    return float(seconds)


def refuse_needless_ephemeral(name: str) -> NoReturn:
    """Refuse `.secret()` and `.ephemeral()` on one step.

    Raises:
        StepDefinitionError: always.
    """
    raise step_error(
        name,
        "it is .secret() and .ephemeral()",
        "A secret step already runs at each replay; remove .ephemeral().",
    )


def repeated_modifier_error(name: str, modifier: str) -> StepDefinitionError:
    """Return the error of a step with a repeated modifier."""
    return step_error(
        name,
        f".{modifier}() is given twice",
        "Keep one of them: the order of modifiers has no meaning, so neither takes precedence.",
    )


def check_callable(name: str, modifier: str, function: Any) -> Any:
    """Return the function of a modifier.

    Raises:
        StepDefinitionError: it is not callable.
    """
    if not callable(function):
        raise step_error(name, f".{modifier}() needs a function, got {function!r:.80} ({type(function).__name__})")
    return function


def to_seconds(time: Any) -> Any:
    """Return a `timedelta` in seconds, and anything else as it is."""
    return time.total_seconds() if isinstance(time, timedelta) else time


def timeout_in_seconds(name: str, time: float | timedelta) -> float:
    """Return the argument of `.timeout()` in seconds.

    Raises:
        StepDefinitionError: it is not above 0.
    """
    seconds = to_seconds(time)
    if not is_finite_number(seconds) or seconds <= 0:
        problem = f".timeout({seconds!r:.80}) must be seconds above 0, or a timedelta"
        raise step_error(name, problem, "Write .timeout(60), or .timeout(timedelta(minutes=1)).")
    return float(seconds)


# --- `.on()` -----------------------------------------------------------------------------------------------------------


EXECUTOR_NAME = r"[A-Za-z_][\w.-]{0,99}"
"""The names of executors; none can be mistaken for an address such as `dask://host:8786`."""


@lazy_frozen(eq=False, repr=False)
class Placement(FieldEquality):
    """The executor of a step.

    It is not part of the step's identity: a step that moves to another executor keeps its
    recorded result.

    Attributes:
        executor: the name of the executor.
        resources: the amount of each resource that the step needs on a worker, by name.
    """

    executor: str
    resources: Mapping[str, float] = attrs.field(factory=dict)


def make_placement(step_name: str, executor: Any, resources: Any) -> Placement:
    """Check the arguments of `.on()` and return them as a value; see `StepBase.on`."""
    if not isinstance(executor, str) or re.fullmatch(EXECUTOR_NAME, executor) is None:
        raise step_error(
            step_name,
            f".on() takes the name of an executor, got {executor!r:.80} ({type(executor).__name__})",
            'Write .on("process"), or the name of an executor of the engine: WorkflowEngine(executors={"gpu": …}).',
        )
    for name, amount in _items(step_name, resources):
        if not isinstance(name, str) or not name.strip() or not is_finite_number(amount) or amount <= 0:
            raise step_error(
                step_name,
                f".on(resources=…) contains {name!r:.40}: {amount!r:.40}",
                'Give each resource a name and an amount above 0: {"GPU": 1}.',
            )
    return Placement(str.__str__(executor), dict(resources or {}))


def _items(step_name: str, resources: Any) -> Any:
    if resources is None:
        return ()
    if not isinstance(resources, Mapping):
        raise step_error(
            step_name,
            f".on(resources=…) takes a mapping, got {resources!r:.80} ({type(resources).__name__})",
            'Write {"GPU": 1}.',
        )
    return resources.items()


# --- `.retry()` --------------------------------------------------------------------------------------------------------


RetryOn: TypeAlias = type[BaseException] | Callable[[BaseException], bool]
"""Errors to retry: an exception class, or a function that gets the exception and returns a bool."""


DEFAULT_MAX_DELAY = 60.0


@lazy_frozen(eq=False, repr=False)
class RetryPolicy(FieldEquality):
    """When a failed try is followed by another, and after how long.

    The wait before try n + 1 is `backoff * factor**(n - 1)` seconds, at most `max_delay`, and varied by up to `jitter` of
    itself in both directions; or what the error asks for, if that is longer.

    Attributes:
        attempts: total tries, including the first; None for any number.
        backoff: seconds before the second try.
        max_delay: the longest wait in seconds.
        jitter: fraction of the wait, 0 to 1.
        on: the errors to retry: exception types, and functions that get the exception; any other error fails the step
            at once.
        deadline: no new try starts later than this many seconds after the first; None for no limit.
        factor: how many times longer each wait is than the one before.
    """

    attempts: int | None
    backoff: float = 0.0
    max_delay: float = DEFAULT_MAX_DELAY
    jitter: float = 0.0
    on: tuple[RetryOn, ...] = (Exception,)
    deadline: float | None = None
    factor: float = 2.0

    def delay(self, tries: int, *, random: float, at_least: float = 0.0) -> float:
        """Return the seconds to wait before the next try.

        Args:
            tries: how many tries have failed, from 1.
            random: a number in [0, 1), the source of the jitter.
            at_least: the seconds that the error asks for.
        """
        wait = 0.0
        if self.backoff:
            try:
                wait = min(self.max_delay, self.backoff * self.factor ** (tries - 1))
            except OverflowError:  # the wait reached its limit long before
                wait = self.max_delay
        return max(at_least, wait * (1 + self.jitter * (2 * random - 1)))

    def only(self, *, functions: bool) -> RetryPolicy:
        """Return the policy with only the functions of `on`, or only its classes."""
        return attrs.evolve(self, on=tuple(each for each in self.on if isinstance(each, type) is not functions))

    def should_retry(
        self,
        error: BaseException,
        *,
        warn: Callable[[str], None],
        matches: Callable[[BaseException, tuple[type[BaseException], ...]], bool] = isinstance,
    ) -> bool:
        """Return whether an exception is worth another try.

        A function that raises, or returns neither True nor False, means no, and is reported to `warn`.

        Args:
            error: what the try raised.
            warn: called with one sentence about an invalid function.
            matches: returns whether an exception is an instance of some classes, even if another process raised it.
        """
        for each in self.on:
            if isinstance(each, type):
                if matches(error, (each,)):
                    return True
                continue
            named = getattr(each, "__qualname__", type(each).__qualname__)
            try:
                answer: object = each(error)
            except Exception as failure:
                warn(f"{named} of .retry(on=…) raised {type(failure).__name__}: {failure}; not retrying")
                continue
            if answer is True:
                return True
            if answer is not False:
                warn(f"{named} of .retry(on=…) returned {answer!r:.80} instead of True or False; not retrying")
        return False


def make_retry_policy(
    name: str,
    attempts: int | None,
    backoff: float | timedelta,
    max_delay: float | timedelta | None,
    jitter: float,
    on: RetryOn | tuple[RetryOn, ...],
    deadline: float | timedelta | None,
    factor: float,
) -> RetryPolicy:
    """Check the arguments of `.retry()` and return the policy; see `RetryPolicy`.

    Raises:
        StepDefinitionError: an argument is out of its range.
    """

    def error(problem: str, remedy: str = "") -> StepDefinitionError:
        return step_error(name, f".retry({problem}", remedy)

    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
        raise error(
            f"attempts={attempts!r:.80}) must be a whole number from 1, or None",
            "It counts all tries, including the first; None means any number.",
        )
    first, longest, last = to_seconds(backoff), to_seconds(max_delay), to_seconds(deadline)
    for label, number in (("backoff", first), ("max_delay", longest)):
        if number is not None and (not is_finite_number(number) or number < 0):
            raise error(f"{label}={number!r:.80}) must be seconds, 0 or more")
    if first is None:
        raise error("backoff=None) must be seconds, 0 or more")
    if longest is None:
        longest = max(DEFAULT_MAX_DELAY, first)
    if not is_finite_number(factor) or factor < 1:
        raise error(f"factor={factor!r:.80}) must be a number from 1", "1 keeps all waits equally long.")
    if not is_finite_number(jitter) or not 0 <= jitter <= 1:
        raise error(f"jitter={jitter!r:.80}) must be in 0 … 1")
    if last is not None and (not is_finite_number(last) or last <= 0):
        raise error(f"deadline={deadline!r:.80}) must be seconds above 0, or None")
    worth = on if isinstance(on, tuple) else (on,)
    if not worth:
        raise error("on=()) names no error to retry", "Name exceptions, or remove .retry().")
    for each in worth:
        if isinstance(each, type) and issubclass(each, Exception):
            continue
        if isinstance(each, type) or not callable(each):
            raise error(f"on=…) takes exception classes and functions of an exception, got {each!r:.120}")
        if inspect.iscoroutinefunction(each):
            raise error(f"on=…) was given {each!r:.120}, which is async", "Give a plain function.")
    return RetryPolicy(
        attempts,
        float(first),
        float(longest),
        float(jitter),
        worth,
        None if last is None else float(last),
        float(factor),
    )


# --- `.evidence()` -----------------------------------------------------------------------------------------------------


@lazy_frozen(eq=False, repr=False)
class ClaimedEvidence(FieldEquality):
    """The arguments of `.evidence()`.

    Attributes:
        claims: claims, packs, and functions that make them from the step's result, in the given order.
        require_all: whether every claim must hold.
        min_verified: the number of claims that must hold, or None for all or any.
    """

    claims: tuple[Any, ...]
    require_all: bool = True
    min_verified: int | None = None


def make_claimed_evidence(
    name: str, claims: tuple[Any, ...], require_all: bool, min_verified: int | None
) -> ClaimedEvidence:
    """Check the arguments of `.evidence()` and return them as a value."""
    if not claims:
        raise step_error(
            name,
            ".evidence() has no claims",
            'Pass claims, such as .evidence(file_sha256("rows.csv")), or a function of the result that returns claims.',
        )
    for claim in claims:
        if not (hasattr(claim, "evidence_type") or hasattr(claim, "evidence_list") or callable(claim)):
            raise step_error(
                name,
                f".evidence() takes claims and functions that make them, got {claim!r:.80} ({type(claim).__name__})",
                "Use the constructors of flowckpt.evidence, without a list around them.",
            )
    if type(require_all) is not bool:
        raise step_error(name, f".evidence(require_all={require_all!r}) must be True or False")
    if min_verified is not None and (type(min_verified) is not int or min_verified < 1):
        raise step_error(
            name,
            f".evidence(min_verified={min_verified!r}) must be a whole number from 1",
            "It is the number of claims that must hold.",
        )
    if min_verified is not None and min_verified > len(claims) and not any(callable(claim) for claim in claims):
        raise step_error(
            name,
            f".evidence(min_verified={min_verified}) with only {len(claims)} claims can never hold",
            "Add claims, or require fewer.",
        )
    has_pack = any(hasattr(claim, "evidence_list") for claim in claims)
    if has_pack and (len(claims) > 1 or not require_all or min_verified is not None):
        raise step_error(
            name,
            ".evidence() got a pack and other arguments",
            "A pack has its own policy and all its claims: pass it alone.",
        )
    return ClaimedEvidence(claims, require_all, min_verified)


# --- `.reads()` and `.writes()` ----------------------------------------------------------------------------------------


@lazy_frozen(eq=False, repr=False)
class StepFiles(FieldEquality):
    """The arguments of `.reads()` and `.writes()`.

    Attributes:
        reads: paths, and functions of the step's arguments that return paths.
        writes: likewise.
    """

    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()

    @property
    def word(self) -> str:
        """The modifier that was given, the first if both were."""
        return "reads" if self.reads else "writes"

    def paths(self, step: str, role: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths of one modifier for a call, each once.

        Args:
            step: the step, for errors.
            role: `reads` or `writes`.
            args: the positional arguments of the call.
            kwargs: its keyword arguments.

        Raises:
            StepDefinitionError: a function returned something else than paths.
        """
        found: dict[str, None] = {}
        for each in getattr(self, role):
            if not callable(each):
                found[os.fspath(each)] = None
                continue
            try:
                made = each(*args, **kwargs)
            except Exception as error:
                error.add_note(f"It was raised by a function in .{role}(), which gets the arguments of the step.")
                raise
            listed = [made] if isinstance(made, str | os.PathLike) else made
            if not isinstance(listed, Iterable) or isinstance(listed, bytes):
                raise _path_error(step, role, made, is_returned=True)
            for path in listed:
                if not _is_path(path):
                    raise _path_error(step, role, path, is_returned=True)
                found[os.fspath(path)] = None
        return tuple(found)


def list_declared_files(step: Any, role: str) -> tuple[str, ...]:
    """Return the paths that a step reads or writes, for the arguments that it is called with.

    Args:
        step: the step; of a composite, the modifiers are those of its members.
        role: `reads` or `writes`.

    Raises:
        StepDefinitionError: a function returned something else than paths.
    """
    files, action = step.modifiers.files, step.action
    if files is None or action.is_composite:
        return ()
    paths: tuple[str, ...] = files.paths(step.name, role, getattr(action, "args", ()), getattr(action, "kwargs", {}))
    return paths


def make_step_files(name: str, role: str, paths: tuple[Any, ...], before: StepFiles | None) -> StepFiles:
    """Check the arguments of `.reads()` or `.writes()` and return them with those of the other one."""
    if not paths:
        raise step_error(
            name,
            f".{role}() names no file",
            f'Name files: .{role}("data/a.csv"), or a function of the step\'s arguments that returns their paths.',
        )
    for each in paths:
        if not (_is_path(each) or callable(each)):
            raise _path_error(name, role, each, is_returned=False)
    return attrs.evolve(before or StepFiles(), **{role: paths})


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str) and bool(path)


def _path_error(name: str, role: str, value: object, *, is_returned: bool) -> StepDefinitionError:
    problem = f"a function in .{role}() returned" if is_returned else f".{role}() takes paths and functions, got"
    return step_error(
        name,
        f"{problem} {value!r:.80} ({type(value).__name__})",
        "Return a path, or a list of paths." if is_returned else f"Name each file by itself: .{role}(*paths).",
    )
