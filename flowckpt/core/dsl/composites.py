"""Actions made of steps: a map over items, parallel steps, a child workflow, a workflow started as another run.

The paths of a composite's steps are below its own path. In a fan-out they have brackets (`pages/[17]`, `pages/[de]`,
`parallel/[load]`): these steps are independent of each other. In a child workflow they have none (`train/fit`): these
steps run one after another, as the generator yields them. So a path alone shows which steps may depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar, Unpack, overload

import attrs

from flowckpt.core.dsl.checks import (
    caller,
    check_function,
    check_name,
    created_steps,
    describe_argument,
    encode_name,
    keywords_of,
    note_created,
    path_of,
    step_error,
    unyielded_argument_error,
)
from flowckpt.core.dsl.modifiers import PLAIN, Modifiers
from flowckpt.core.dsl.step import Action, PythonAction, RunAction, Step, function_name, parameters_of
from flowckpt.core.dsl.workflow import Workflow
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.secret import Secret
from flowckpt.errors import FlowckptError, StepDefinitionError, StepFailedError


@attrs.frozen
class Completion:
    """How many members of a fan-out may fail before it fails itself; none by default.

    Attributes:
        min_success: how many must succeed: a number of members, or a fraction as a float.
        tolerate: how many may fail, in the same form.
    """

    min_success: int | float | None = None
    tolerate: int | float | None = None

    @property
    def allows_failures(self) -> bool:
        """Whether any failure is tolerated, so that the output may contain failures."""
        return self.min_success is not None or self.tolerate is not None

    def cannot_succeed(self, failed: int, total: int | None) -> bool:
        """Return whether the fan-out can no longer succeed; `total` is None while unknown."""
        if not failed:
            return False
        if not self.allows_failures:
            return True
        if type(self.tolerate) is int and failed > self.tolerate:
            return True
        if total is None:
            return False
        return failed > total - self.needed(total)

    def is_enough(self, succeeded: int, total: int | None) -> bool:
        """Return whether enough members have succeeded, so that the others can be stopped.

        All members run with `tolerate`, if none needs to succeed, or while the number is a fraction of an unknown total.
        """
        if self.min_success is None or self.tolerate is not None:
            return False
        if total is None and type(self.min_success) is not int:
            return False
        return 0 < self.needed(total or 0) <= succeeded

    def is_met(self, failed: int, total: int) -> bool:
        """Return whether a fan-out whose members have all ended has succeeded."""
        if not self.allows_failures:
            return failed == 0
        return total - failed >= self.needed(total)

    def needed(self, total: int) -> int:
        """Return how many of `total` members must succeed."""
        needed = 0
        if self.min_success is not None:
            wanted = self.min_success
            needed = wanted if type(wanted) is int else math.ceil(round(wanted * total, 9))
        if self.tolerate is not None:
            may_fail = self.tolerate if type(self.tolerate) is int else math.floor(round(self.tolerate * total, 9))
            needed = max(needed, total - may_fail)
        return needed


ALL = Completion()


TOO_FEW_REMEDY = "Require fewer, or a fraction such as min_success=0.5; or provide more."


def make_completion(
    name: str, min_success: float | None, tolerate: float | None, size: int | None = None
) -> Completion:
    """Check `min_success` and `tolerate`; `size` is the number of members, if known.

    Raises:
        StepDefinitionError: a number is negative, a fraction is outside 0 … 1, or more members must succeed than there
            are.
    """
    for label, number in (("min_success", min_success), ("tolerate", tolerate)):
        if number is None:
            continue
        is_count = type(number) is int and number >= 0
        is_fraction = type(number) is float and 0.0 <= number <= 1.0
        if not (is_count or is_fraction):
            raise step_error(
                name,
                f"{label}={number!r:.40} is neither a number of members nor a fraction of them",
                f"Write {label}=3 for three of them, or {label}=0.5 for half of them.",
            )
    made = ALL if min_success is None and tolerate is None else Completion(min_success, tolerate)
    if size is not None and type(made.min_success) is int and made.min_success > size:
        raise step_error(
            name,
            f"min_success={min_success}, but there {'is' if size == 1 else 'are'} only {size}: it can never succeed",
            TOO_FEW_REMEDY,
        )
    return made


Member = tuple[str, "Step[Any]"]
"""A step of a composite, after the last part of its path."""


class ItemsError(Exception):
    """The iterator of a map's items, or its key function, raised an error, which is the cause of this one."""


class Composite(Action):
    """The base of actions made of steps."""

    __slots__ = ()
    is_composite: ClassVar[bool] = True


class FanOutAction(Composite):
    """The base of actions whose steps are independent of each other.

    Attributes:
        concurrency: how many run in parallel; None for the default.
        completion: how many may fail.
    """

    __slots__ = ()
    concurrency: int | None
    completion: Completion

    @property
    def size(self) -> int | None:
        """The number of steps; None if it is unknown before they are made."""
        raise NotImplementedError  # pragma: no cover - abstract

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Make the members of the step that has this action, one by one.

        Raises:
            StepDefinitionError: two of them would have the same path.
            ItemsError: the iterator of the items, or the key function, raised.
        """
        raise NotImplementedError  # pragma: no cover - abstract

    def combine(self, values: list[Any]) -> Any:
        """Return the output of the fan-out from the outputs of its members, in their order."""
        raise NotImplementedError  # pragma: no cover - abstract


_NONE: Mapping[str, Any] = {}


@attrs.frozen
class MapAction(FanOutAction):
    """Call a function, or run a workflow, for each item.

    Attributes:
        function: the function of one item, or the workflow with one input.
        items: the items; the next one is requested when a call can start.
        key: returns the name of an item in its path; None to number the items.
        concurrency: how many run in parallel; None for the default.
        completion: how many may fail.
        constants: further arguments, the same for each call.
    """

    step_type: ClassVar[str] = "map"
    modifies_members: ClassVar[bool] = True
    refused: ClassVar[frozenset[str]] = frozenset({"ephemeral", "secret"})

    function: Any
    items: Iterable[Any] = attrs.field(repr=False)
    key: Callable[[Any], Any] | None = None
    concurrency: int | None = None
    completion: Completion = ALL
    constants: Mapping[str, Any] = _NONE

    @property
    def parameters(self) -> Collection[str]:
        """The names of the arguments of each call."""
        return parameters_of(self.function.function if isinstance(self.function, Workflow) else self.function)

    @property
    def function_name(self) -> str:
        """`module:qualname` of the function, or of the workflow's function."""
        named = getattr(self.function, "function_name", None)
        return named if isinstance(named, str) else function_name(self.function)

    def refused_modifier(self, modifiers: Modifiers) -> str:
        """Return a modifier that cannot be used: a map of a workflow calls no function."""
        of_function = {"on", "cache", "reads", "writes", "record_arguments"} if _is_workflow(self.function) else set()
        return modifiers.first_of(self.refused | of_function)

    @property
    def size(self) -> int | None:
        """The number of items; None for an iterator."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Make the step of each item; it has the modifiers of the map, except for the id of the checkpoint."""
        modifiers = step.modifiers
        if modifiers.checkpoint_id is not None:
            modifiers = attrs.evolve(modifiers, checkpoint_id=None)
        function, key, name, made = self.function, self.key, step.name, type(step)
        workflow_input = _find_item_input(function, name, self.constants) if _is_workflow(function) else ""
        seen: set[str] = set()
        for index, item in _number_items(self.items):
            place = f"[{index}]" if key is None else f"[{_make_key(key, index, item, name)}]"
            if key is not None:
                if place in seen:
                    raise step_error(
                        name,
                        f"two items have the key {place[1:-1]!r}",
                        "Build the key from something that differs between the items.",
                        where="",
                    )
                seen.add(place)
            if workflow_input:
                action = WorkflowAction(function, function.bind({**self.constants, workflow_input: item}))
                yield place, made(name, _strip_function_modifiers(modifiers), action)
            else:
                yield place, made(name, modifiers, PythonAction(function, (item,), self.constants))

    def combine(self, values: list[Any]) -> Any:
        """Return the list of the outputs."""
        return values


@attrs.frozen
class ParallelAction(FanOutAction):
    """Run steps in parallel.

    Attributes:
        steps: the steps.
        concurrency: how many run in parallel; None for all of them.
        completion: how many may fail.
    """

    step_type: ClassVar[str] = "parallel"
    refused: ClassVar[frozenset[str]] = frozenset(
        {"retry", "timeout", "ephemeral", "secret", "evidence", "reads", "writes", "at_most_once", "adopt", "on_rerun"}
        | {"rollback", "on", "cache", "record_arguments"}
    )

    steps: tuple[Step[Any], ...]
    concurrency: int | None = None
    completion: Completion = ALL

    @property
    def size(self) -> int | None:
        """The number of steps."""
        return len(self.steps)

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Return the steps; a name used twice gets its occurrence after the bracket."""
        uses: dict[str, int] = {}
        for each in self.steps:
            occurrence = uses.get(each.name, 0)
            uses[each.name] = occurrence + 1
            place = f"[{encode_name(each.name)}]"
            yield (f"{place}[{occurrence}]" if occurrence else place), each

    def combine(self, values: list[Any]) -> Any:
        """Return the tuple of the outputs."""
        return tuple(values)


@attrs.frozen
class WorkflowAction(Composite):
    """Run a workflow inside the workflow.

    Attributes:
        workflow: the child.
        inputs: its inputs by name, with defaults applied.
    """

    step_type: ClassVar[str] = "workflow"
    refused: ClassVar[frozenset[str]] = ParallelAction.refused - {"rollback"}

    workflow: Workflow[Any, Any]
    inputs: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def function_name(self) -> str:
        """`module:qualname` of the child's generator function."""
        return self.workflow.function_name

    def arguments(self) -> Mapping[str, Any]:
        """Return the child's inputs."""
        return self.inputs


@attrs.frozen
class StartAction(RunAction):
    """Start another run.

    Attributes:
        workflow: the workflow of the new run.
        inputs: the given inputs, by name.
    """

    step_type: ClassVar[str] = "start"

    workflow: Workflow[Any, Any]
    inputs: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def function_name(self) -> str:
        """`module:qualname` of the generator function."""
        return self.workflow.function_name

    @property
    def output_type(self) -> Any:
        """The id of the run."""
        return str

    @property
    def parameters(self) -> Collection[str]:
        """The names of the inputs."""
        return self.workflow.signature.parameters

    def arguments(self) -> Mapping[str, Any]:
        """Return the inputs, with defaults applied."""
        return self.workflow.bind(self.inputs)


def _number_items(items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    index = 0
    try:
        for item in items:
            yield index, item
            index += 1
    except FlowckptError:
        raise
    except Exception as error:
        raise ItemsError(f"the iterator of the items failed at item {index}") from error


def _make_key(key: Callable[[Any], Any], index: int, item: Any, name: str) -> str:
    try:
        made = key(item)
    except FlowckptError:
        raise
    except Exception as error:
        raise ItemsError(f"the key function failed for item {index}, {short_repr(item)}") from error
    if type(made) is not str and type(made) is not int:
        raise step_error(
            name,
            f"the key of {item!r:.60} is {made!r:.60} ({type(made).__name__})",
            "A key must be text or a whole number.",
            where="",
        )
    text = str(made)
    if not text.strip() or len(text) > 200:
        raise step_error(
            name,
            f"the key of {item!r:.60} has {len(text)} characters: {text[:40]!r}",
            "A key must have 1 to 200 characters and not be blank.",
            where="",
        )
    return path_of(text)


def _is_workflow(function: Any) -> bool:
    return hasattr(function, "signature") and hasattr(function, "function_name") and hasattr(function, "bind")


def _find_item_input(workflow: Workflow[Any, Any], name: str, constants: Collection[str]) -> str:
    """Return the input of a workflow that receives the item: the only one with neither a default nor a constant."""
    parameters = workflow.signature.parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.name not in constants]
    if len(required) != 1:
        raise step_error(
            name,
            f"workflow {workflow.name!r} must have one input without a default, which receives the item; "
            f"it has {len(required)}",
            "Wrap it in a workflow of one item.",
            where="",
        )
    return required[0]


def _strip_function_modifiers(modifiers: Modifiers) -> Modifiers:
    return Modifiers(has_checkpoint=modifiers.has_checkpoint, version=modifiers.version, rollback=modifiers.rollback)


# --- the arguments of `.map()`, `.workflow()` and `parallel()` ----------------------------------------------------------


def map_action(
    name: str,
    function: Any,
    items: Any,
    constants: Mapping[str, Any],
    *,
    key: Any,
    concurrency: Any,
    min_success: Any,
    tolerate: Any,
) -> MapAction:
    """Check the arguments of `.map()`; see there."""
    if not isinstance(function, Workflow):
        check_function(name, function, "map")
        known = keywords_of(function) if constants else None
        unknown = None if known is None else next((each for each in constants if each not in known), None)
        if unknown is not None:
            raise step_error(
                name,
                f".map() has no option {unknown!r}, and {function_name(function)} has no such parameter",
                f"Options: key, concurrency, min_success, tolerate. Parameters: {', '.join(known or ())}.",
            )
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise step_error(
            name,
            f".map() needs items, got {items!r:.60} ({type(items).__name__})",
            "Pass a list or another iterable; list(text) for the characters of a text.",
        )
    if type(items).__name__ == "DataFrame":  # of pandas or polars: iterates over its columns
        raise step_error(
            name,
            f".map() was given a {type_name(type(items))}, which iterates over its columns",
            "Pass its rows: frame.to_dict('records') in pandas, frame.to_dicts() in polars; or list(frame) for the columns.",
        )
    if isinstance(items, set | frozenset):
        raise step_error(
            name,
            f".map() was given a {type(items).__name__}, whose order differs between processes",
            "Members are identified by their position: pass sorted(items).",
        )
    for each in (*constants.values(), *(items if isinstance(items, list | tuple) else ())):
        if type(each) is Step:
            raise unyielded_argument_error(name, each)
    if key is not None and not callable(key):
        raise step_error(name, f".map(key={key!r:.60}) must be a function of an item")
    size = len(items) if min_success is not None and isinstance(items, Sized) else None
    completion = make_completion(name, min_success, tolerate, size)
    return MapAction(function, items, key, _check_concurrency(name, concurrency), completion, constants)


def parallel_action(
    name: str, steps: tuple[Any, ...], *, concurrency: Any, min_success: Any, tolerate: Any
) -> ParallelAction:
    """Check the arguments of `parallel()`; see there."""
    for each in steps:
        if not isinstance(each, Step):
            raise StepDefinitionError(
                f"{name}: expected steps with an action, got {describe_argument(each)}",
                step=name,
                where=caller(),
                remedy='Write parallel(step("a").python(f), step("b").python(g)); unpack a list of steps with *steps.',
            )
        if each.action.is_patch:
            raise StepDefinitionError(
                f"{name}: patched({each.name!r}) cannot be a member: it chooses a branch of the workflow",
                step=name,
                where=caller(),
                remedy=f"Yield it by itself: if (yield patched({each.name!r})): …",
            )
        if each.modifiers.placement is not None and (refused := each.action.refused_modifier(each.modifiers)):
            raise step_error(
                each.name,
                f".{refused}() cannot be used with .{each.action.step_type}()",
                "It applies to .python(), and to a .map() of a function: leave it out.",
            )
    completion = make_completion(name, min_success, tolerate, len(steps))
    return ParallelAction(steps, _check_concurrency(name, concurrency), completion)


def workflow_action(
    name: str, child: Any, args: tuple[Any, ...], inputs: Mapping[str, Any], word: str = "workflow"
) -> WorkflowAction:
    """Check the arguments of `.workflow()`, or of another action that takes a workflow, named `word`."""
    if not isinstance(child, Workflow):
        raise step_error(
            name,
            f".{word}() needs a workflow, got {describe_argument(child)}",
            "Decorate the generator function with @workflow, and pass it without calling it.",
        )
    if args:
        raise step_error(
            name,
            f"the inputs of workflow {child.name!r} must be passed by name, got {args[0]!r:.60}",
            f"Its inputs: {', '.join(child.signature.parameters) or 'none'}.",
        )
    for each in inputs.values():
        if type(each) is Step:
            raise unyielded_argument_error(name, each)
    bound = child.bind(inputs)
    for secret in child.secret_inputs:  # `start` wraps them, too
        if bound[secret] is not None:
            bound[secret] = Secret(bound[secret])
    return WorkflowAction(child, bound)


def start_action(name: str, child: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> StartAction:
    """Check the arguments of `.start()`; see there."""
    bound = workflow_action(name, child, args, inputs, word="start").inputs
    secret = next((each for each in child.secret_inputs if bound[each] is not None), "")
    if secret:
        raise step_error(
            name,
            f".start(): the input {secret!r} of workflow {child.name!r} is secret, so it cannot be recorded "
            "with the new run, and no other process could run it",
            f"Run it inside this run with .workflow({child.name}, …), or let it read the secret itself.",
        )
    return StartAction(child, dict(inputs))


def _check_concurrency(name: str, concurrency: Any) -> int | None:
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise step_error(
            name,
            f"concurrency={concurrency!r:.40} must be a whole number from 1",
            "It is the number of steps that run in parallel.",
        )
    return concurrency


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


if TYPE_CHECKING:

    class ParallelOptions(TypedDict, total=False):
        """The options of `parallel` that do not affect the type of its output."""

        name: str
        concurrency: int | None


@overload
def parallel(a: Step[A], /, **kw: Unpack[ParallelOptions]) -> Step[tuple[A]]: ...
@overload
def parallel(a: Step[A], b: Step[B], /, **kw: Unpack[ParallelOptions]) -> Step[tuple[A, B]]: ...
@overload
def parallel(a: Step[A], b: Step[B], c: Step[C], /, **kw: Unpack[ParallelOptions]) -> Step[tuple[A, B, C]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], /, **kw: Unpack[ParallelOptions]
) -> Step[tuple[A, B, C, D]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], /, **kw: Unpack[ParallelOptions]
) -> Step[tuple[A, B, C, D, E]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], /, **kw: Unpack[ParallelOptions]
) -> Step[tuple[A, B, C, D, E, F]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], g: Step[G], /, **kw: Unpack[ParallelOptions]
) -> Step[tuple[A, B, C, D, E, F, G]]: ...
@overload
def parallel(
    a: Step[A],
    b: Step[B],
    c: Step[C],
    d: Step[D],
    e: Step[E],
    f: Step[F],
    g: Step[G],
    h: Step[H],
    /,
    **kw: Unpack[ParallelOptions],
) -> Step[tuple[A, B, C, D, E, F, G, H]]: ...
@overload
def parallel(*steps: Step[A], name: str = ..., concurrency: int | None = ...) -> Step[tuple[A, ...]]: ...
@overload
def parallel(
    *steps: Step[A],
    name: str = ...,
    concurrency: int | None = ...,
    min_success: float | None = ...,
    tolerate: float | None = ...,
) -> Step[tuple[A | StepFailedError, ...]]: ...
def parallel(
    *steps: Step[Any],
    name: str = "parallel",
    concurrency: int | None = None,
    min_success: float | None = None,
    tolerate: float | None = None,
) -> Step[Any]:
    """Create a step that runs steps in parallel; the output is the tuple of their outputs, in the given order.

    Each step keeps its own modifiers and record, with the path `NAME/[STEP]`. The group itself takes `.checkpoint()`
    and `.version()`.

    Args:
        *steps: steps with their actions: functions, commands, maps, workflows, other groups. Type checkers know the
            outputs of up to eight steps.
        name: the name of the group.
        concurrency: how many run in parallel; all by default.
        min_success: how many must succeed; the others are stopped once this number is reached. See `.map`.
        tolerate: how many may fail; see `.map`.

    Raises:
        StepDefinitionError: an argument is invalid.
    """
    check_name(name, "step name")
    action = parallel_action(name, steps, concurrency=concurrency, min_success=min_success, tolerate=tolerate)
    if (noted := created_steps()) is not None:  # yielding the group yields them
        for each in steps:
            noted.pop(id(each.action), None)
        note_created(action, name)
    return Step(name, PLAIN, action)
