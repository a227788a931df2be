"""What `.map()`, `.workflow()` and `parallel()` are given, checked and made into actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from flowckpt.dsl.caller import caller
from flowckpt.dsl.completion import completion_of
from flowckpt.dsl.composites import MapAction, ParallelAction, WorkflowAction
from flowckpt.dsl.named_function import check_function, told_of
from flowckpt.dsl.step import Step
from flowckpt.dsl.workflow import Workflow
from flowckpt.errors import StepDefinitionError
from flowckpt.secret import Secret


def map_action(
    name: str,
    function: Any,
    items: Any,
    *,
    key: Any,
    concurrency: Any,
    min_success: Any,
    tolerate: Any,
) -> MapAction:
    """Check the arguments of `.map()`; see there."""
    if not isinstance(function, Workflow):
        check_function(name, function, "map")
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise StepDefinitionError(
            f"step {name!r}: .map() needs items, got {items!r:.60} ({type(items).__name__})",
            step=name,
            where=caller(),
            remedy="Give a list, or anything else that can be iterated over; list(text) for the characters of a text.",
        )
    if isinstance(items, set | frozenset):
        raise StepDefinitionError(
            f"step {name!r}: .map() was given a {type(items).__name__}, which has another order in each process",
            step=name,
            where=caller(),
            remedy="Members are known by their place: give sorted(items).",
        )
    if key is not None and not callable(key):
        raise StepDefinitionError(
            f"step {name!r}: .map(key={key!r:.60}) must be a function of an item", step=name, where=caller()
        )
    completion = completion_of(name, min_success, tolerate, len(items) if isinstance(items, Sized) else None)
    return MapAction(function, items, key, _checked_concurrency(name, concurrency), completion)


def parallel_action(
    name: str, steps: tuple[Any, ...], *, concurrency: Any, min_success: Any, tolerate: Any
) -> ParallelAction:
    """Check the arguments of `parallel()`; see there."""
    for each in steps:
        if not isinstance(each, Step):
            raise StepDefinitionError(
                f"{name}: takes steps with an action, got {told_of(each)}",
                step=name,
                where=caller(),
                remedy='Write parallel(step("a").python(f), step("b").python(g)); a list of steps with a star: *steps.',
            )
        if each.modifiers.placement is not None and (refused := each.action.refused_modifier(each.modifiers)):
            raise StepDefinitionError(
                f"step {each.name!r}: .{refused}() makes no sense with .{each.action.step_type}()",
                step=each.name,
                where=caller(),
                remedy="It is for .python(), and for a .map() of a function: leave it out.",
            )
    completion = completion_of(name, min_success, tolerate, len(steps))
    return ParallelAction(steps, _checked_concurrency(name, concurrency), completion)


def workflow_action(name: str, child: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> WorkflowAction:
    """Check the arguments of `.workflow()`; see there."""
    if not isinstance(child, Workflow):
        raise StepDefinitionError(
            f"step {name!r}: .workflow() needs a workflow, got {told_of(child)}",
            step=name,
            where=caller(),
            remedy="Decorate the generator function with @workflow, and pass it uncalled.",
        )
    if args:
        raise StepDefinitionError(
            f"step {name!r}: the inputs of workflow {child.name!r} are given by name, got {args[0]!r:.60}",
            step=name,
            where=caller(),
            remedy=f"Its inputs: {', '.join(child.signature.parameters) or 'none'}.",
        )
    bound = child.bind(inputs)
    for secret in child.secret_inputs:  # a start wraps them, too
        if bound[secret] is not None:
            bound[secret] = Secret(bound[secret])
    return WorkflowAction(child, bound)


def _checked_concurrency(name: str, concurrency: Any) -> int | None:
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise StepDefinitionError(
            f"step {name!r}: concurrency={concurrency!r:.40} must be a whole number from 1",
            step=name,
            where=caller(),
            remedy="It says how many run beside each other.",
        )
    return concurrency
