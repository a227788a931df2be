"""Actions that are made of steps: a fan-out over items, steps side by side, a workflow inside the workflow.

The steps of a composite have their place under its path. Those of a fan-out stand in brackets (`pages/[17]`,
`pages/[de]`, `parallel/[load]`): each is there for itself, and none comes before another. Those of a child workflow do not
(`train/fit`): they come one after another, as its generator yields them. So a path alone tells what depends on what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowckpt.dsl.actions import Action, PythonAction, function_name
from flowckpt.dsl.completion import ALL, Completion
from flowckpt.dsl.modifiers import Modifiers
from flowckpt.dsl.path import encode_name, path_of
from flowckpt.errors import FlowckptError, StepDefinitionError

if TYPE_CHECKING:
    from flowckpt.dsl.step import Step
    from flowckpt.dsl.workflow import Workflow

Member = tuple[str, "Step[Any]"]
"""A step of a composite, and its place: what its path ends with."""


class ItemsError(Exception):
    """What makes the items of a map, or the key of one, has failed; the cause is what it raised.

    Its text says where.
    """


class Composite(Action):
    """The base of actions that are made of steps."""

    __slots__ = ()
    is_composite: ClassVar[bool] = True
    refuses_modifiers: ClassVar[bool] = True
    refused: ClassVar[frozenset[str]] = frozenset()
    """The modifiers that a step with this action cannot have."""

    def refused_modifier(self, modifiers: Modifiers) -> str:
        """Return a modifier that makes no sense with this action, or an empty text.

        Args:
            modifiers: of the step.
        """
        given = {
            "retry": modifiers.retry is not None,
            "timeout": modifiers.timeout_seconds is not None,
            "secret" if modifiers.is_secret else "ephemeral": modifiers.is_ephemeral,
            "evidence": modifiers.evidence is not None,
            "at_most_once": modifiers.is_at_most_once,
            "adopt": modifiers.adopt is not None,
            "on_rerun": modifiers.on_rerun is not None,
            "rollback": modifiers.rollback is not None,
            "on": modifiers.placement is not None,
        }
        return next((name for name, is_given in given.items() if is_given and name in self.refused), "")


class FanOutAction(Composite):
    """The base of actions whose steps are there each for itself.

    Attributes:
        concurrency: how many run beside each other; None for the default.
        completion: how many may fail.
    """

    __slots__ = ()
    concurrency: int | None
    completion: Completion

    @property
    def size(self) -> int | None:
        """How many steps there are; None where that is not known before they are made."""
        raise NotImplementedError  # pragma: no cover - abstract

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Make its steps, one by one.

        Args:
            step: the step that has this action.

        Raises:
            StepDefinitionError: two of them would have the same place.
            ItemsError: what makes the items, or their keys, raised.
        """
        raise NotImplementedError  # pragma: no cover - abstract

    def gathered(self, values: list[Any]) -> Any:
        """Return what the generator gets.

        Args:
            values: the outputs, in the order of the members.
        """
        raise NotImplementedError  # pragma: no cover - abstract


_NONE: Mapping[str, Any] = {}


@attrs.frozen
class MapAction(FanOutAction):
    """Call a function, or run a workflow, for each of some items.

    Attributes:
        function: the function of one item, or the workflow with one input.
        items: the items; asked for one by one, as there is room for them.
        key: names an item in its path; None for its number.
        concurrency: how many run beside each other; None for the default.
        completion: how many may fail.
    """

    step_type: ClassVar[str] = "map"
    modifies_members: ClassVar[bool] = True
    refused: ClassVar[frozenset[str]] = frozenset({"ephemeral", "secret"})

    function: Any
    items: Iterable[Any] = attrs.field(repr=False)
    key: Callable[[Any], Any] | None = None
    concurrency: int | None = None
    completion: Completion = ALL

    @property
    def function_name(self) -> str:
        """`module:qualname` of the function, or of the workflow's."""
        named = getattr(self.function, "function_name", None)
        return named if isinstance(named, str) else function_name(self.function)

    def refused_modifier(self, modifiers: Modifiers) -> str:
        """Return a modifier that makes no sense: a map of a workflow runs no function of its own."""
        if modifiers.placement is not None and _is_workflow(self.function):
            return "on"
        return super().refused_modifier(modifiers)

    @property
    def size(self) -> int | None:
        """How many items there are; None where they are made one by one."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Make the step of each item; its modifiers are those of the map, but for the checkpoint's name."""
        modifiers = step.modifiers
        if modifiers.checkpoint_id is not None:
            modifiers = attrs.evolve(modifiers, checkpoint_id=None)
        function, key, name, made = self.function, self.key, step.name, type(step)
        workflow_input = _only_input(function, name) if _is_workflow(function) else ""
        seen: set[str] = set()
        for index, item in _numbered(self.items):
            place = f"[{index}]" if key is None else f"[{_key_of(key, index, item, name)}]"
            if key is not None:
                if place in seen:
                    raise StepDefinitionError(
                        f"step {name!r}: two items have the key {place[1:-1]!r}",
                        step=name,
                        remedy="A key names one item: make it of something that differs between them.",
                    )
                seen.add(place)
            if workflow_input:
                yield place, made(name, _of_workflow(modifiers), WorkflowAction(function, {workflow_input: item}))
            else:
                yield place, made(name, modifiers, PythonAction(function, (item,), _NONE))

    def gathered(self, values: list[Any]) -> Any:
        """Return the list of the outputs."""
        return values


@attrs.frozen
class ParallelAction(FanOutAction):
    """Run steps beside each other.

    Attributes:
        steps: the steps.
        concurrency: how many run beside each other; None for all of them.
        completion: how many may fail.
    """

    step_type: ClassVar[str] = "parallel"
    refused: ClassVar[frozenset[str]] = frozenset(
        {"retry", "timeout", "ephemeral", "secret", "evidence", "at_most_once", "adopt", "on_rerun", "rollback", "on"}
    )

    steps: tuple[Step[Any], ...]
    concurrency: int | None = None
    completion: Completion = ALL

    @property
    def size(self) -> int | None:
        """How many steps there are."""
        return len(self.steps)

    def members(self, step: Step[Any]) -> Iterator[Member]:
        """Return the steps; a name used twice gets its occurrence behind the bracket."""
        uses: dict[str, int] = {}
        for each in self.steps:
            occurrence = uses.get(each.name, 0)
            uses[each.name] = occurrence + 1
            place = f"[{encode_name(each.name)}]"
            yield (f"{place}[{occurrence}]" if occurrence else place), each

    def gathered(self, values: list[Any]) -> Any:
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


def place_under(path: str, place: str) -> str:
    """Return the path of a member of a composite.

    Args:
        path: the composite's.
        place: the member's, as `members` names it.
    """
    return f"{path}/{place}"


def _numbered(items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    index = 0
    try:
        for item in items:
            yield index, item
            index += 1
    except FlowckptError:
        raise
    except Exception as error:
        raise ItemsError(f"the iterator of the items failed at item {index}") from error


def _key_of(key: Callable[[Any], Any], index: int, item: Any, name: str) -> str:
    try:
        made = key(item)
    except FlowckptError:
        raise
    except Exception as error:
        raise ItemsError(f"the key function failed for item {index}, {_shortly(item)}") from error
    if type(made) is not str and type(made) is not int:
        raise StepDefinitionError(
            f"step {name!r}: the key of {item!r:.60} is {made!r:.60} ({type(made).__name__})",
            step=name,
            remedy="A key is a text or a whole number.",
        )
    text = str(made)
    if not text.strip() or len(text) > 200:
        raise StepDefinitionError(
            f"step {name!r}: the key of {item!r:.60} has {len(text)} characters: {text[:40]!r}",
            step=name,
            remedy="A key has 1 to 200 characters, and is not blank.",
        )
    return path_of(text)


def _shortly(item: Any) -> str:
    try:
        return f"{item!r:.60}"
    except Exception:
        return f"a {type(item).__name__}"


def _is_workflow(function: Any) -> bool:
    return hasattr(function, "signature") and hasattr(function, "function_name") and hasattr(function, "bind")


def _only_input(workflow: Workflow[Any, Any], name: str) -> str:
    """Return the input of a workflow that gets the item: the only one that has no default."""
    parameters = workflow.signature.parameters.values()
    required = [each.name for each in parameters if each.default is each.empty]
    if len(required) != 1:
        raise StepDefinitionError(
            f"step {name!r}: workflow {workflow.name!r} must have one input without a default, which gets the item; "
            f"it has {len(required)}",
            step=name,
            remedy="Write a workflow of one item around it.",
        )
    return required[0]


def _of_workflow(modifiers: Modifiers) -> Modifiers:
    return Modifiers(has_checkpoint=modifiers.has_checkpoint, version=modifiers.version, rollback=modifiers.rollback)
