"""The inputs of a child workflow, held against what it says of them: before any of it runs, as those of a run are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from flowckpt import codec
from flowckpt.codec.annotated_type import fits
from flowckpt.codec.refusal import shown
from flowckpt.dsl.composites import WorkflowAction
from flowckpt.errors import EncodingError, FlowckptError, InputError, type_name
from flowckpt.secret import Secret


def begun_child(action: WorkflowAction, path: str) -> Generator[Any, Any, Any]:
    """Return the generator of a child; where its inputs are refused, one that does nothing but raise that.

    Args:
        action: the child and its inputs.
        path: the step that runs it.
    """
    try:
        _check_inputs(action, path)
    except FlowckptError as refused:
        return _refusing(refused)
    return action.workflow(**action.inputs)


def _refusing(refused: FlowckptError) -> Generator[Any, Any, Any]:
    nothing: tuple[Any, ...] = ()
    yield from nothing  # what makes it a generator
    raise refused


def _check_inputs(action: WorkflowAction, path: str) -> None:
    """Refuse inputs that are not what the child says, or that could not be recorded.

    Args:
        action: the child and its inputs.
        path: the step that runs it.

    Raises:
        InputError: one is not of its annotated type.
        EncodingError: one could not be recorded; the error names the place.
    """
    child = action.workflow
    for name, value in action.inputs.items():
        annotation: Any = child.hints.get(name, Any)
        if name in child.secret_inputs or isinstance(value, Secret):
            continue
        try:
            codec.encode(value, annotation, place=f"{path}: input {name}")
        except EncodingError as error:
            raise EncodingError(
                error.message,
                place=error.place,
                type_name=error.type_name,
                remedy=f"Annotate the input {name!r}, or register its type (flowckpt.codec.register); what no record can "
                "hold is made inside the child, by a step that is .ephemeral().",
            ) from error
        parameter = child.signature.parameters[name]
        if value is parameter.default or fits(value, annotation):  # `limit: int = None` is how many write it
            continue
        wanted = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
        raise InputError(
            f"the input {name!r} of workflow {child.name!r} must be of type {wanted}, got {shown(value)} "
            f"({type_name(type(value))})",
            parameter=name,
            remedy=f"Pass what the annotation says, or annotate {name!r} with what you pass.",
        )
