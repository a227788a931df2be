"""The inputs of a workflow as the command line gives them: `-i K=V`, and a file of them all."""

from __future__ import annotations

import inspect
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowckpt.cli.secret_inputs import read_secret
from flowckpt.cli.terminal_text import short_value
from flowckpt.cli.values import MisfitError, from_json, from_text
from flowckpt.dsl import Workflow
from flowckpt.errors import InputError
from flowckpt.secret import HIDDEN, Secret


def convert_inputs(
    workflow: Workflow[..., Any], texts: Mapping[str, str], document: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the inputs with the types that the workflow's parameters ask for.

    Args:
        workflow: the workflow.
        texts: inputs as text, by name; they go before the document's. Those of secret inputs may say where the value is.
        document: inputs from a JSON or TOML file.

    Raises:
        InputError: a name is unknown, or a value does not fit its parameter.
    """
    found: dict[str, Any] = {}
    for name, value in (document or {}).items():
        if name in workflow.secret_inputs and name not in texts:
            found[name] = read_secret(workflow, name, value, is_text=False)
        elif name not in texts:
            found[name] = _converted(workflow, name, value, from_json)
    for name, text in texts.items():
        if name in workflow.secret_inputs:
            found[name] = read_secret(workflow, name, text, is_text=True)
        else:
            found[name] = _converted(workflow, name, text, from_text)
    return found


def read_inputs_file(file: str) -> dict[str, Any]:
    """Return the object in a file of inputs.

    Args:
        file: a JSON file, a TOML file (by its name), or `-` for JSON on standard input.

    Raises:
        InputError: it cannot be read, or is no object.
    """
    shown = "standard input" if file == "-" else file
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"the inputs in {shown} cannot be read: {error.strerror}") from error
    try:
        document = tomllib.loads(text.decode()) if file.endswith(".toml") else json.loads(text)
    except ValueError as error:
        kind = "TOML" if file.endswith(".toml") else "JSON"
        raise InputError(f"the inputs in {shown} are no valid {kind}: {error}") from error
    if not isinstance(document, dict):
        raise InputError(
            f"the inputs in {shown} must be an object, got {short_value(document, 80)}",
            remedy='Write {"name": value, …}.',
        )
    return document


def _converted(workflow: Workflow[..., Any], name: str, value: Any, convert: Callable[[Any, Any], Any]) -> Any:
    parameter = workflow.signature.parameters.get(name)
    if parameter is None:
        known = ", ".join(map(_definition, workflow.signature.parameters.values())) or "none"
        raise InputError(
            f"workflow {workflow.name!r} has no input {name!r}", parameter=name, remedy=f"Its inputs: {known}."
        )
    annotation = _annotation(workflow, parameter)
    try:
        return convert(value, annotation)
    except MisfitError as misfit:
        place = f" at {name}{misfit.place}" if misfit.place else ""
        raise InputError(
            f"input {name!r} of workflow {workflow.name!r} must be {misfit.expected}{place}, "
            f"got {short_value(misfit.got, 80)}",
            parameter=name,
            remedy=f"It is defined as {_definition(parameter)}.",
        ) from misfit


def _annotation(workflow: Workflow[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what a parameter takes: its annotation, else the type of its default."""
    annotation = workflow.hints.get(parameter.name, Any)
    if annotation is not Any:
        return annotation
    default = parameter.default
    return Any if default is parameter.empty or default is None else type(default)


def _definition(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        said = f": {annotation}"
    else:
        said = "" if annotation is parameter.empty else f": {inspect.formatannotation(annotation)}"
    said = said.replace("pathlib._local.", "pathlib.")  # Python 3.13 shows where it keeps the class
    if isinstance(parameter.default, Secret):
        return f"{parameter.name}{said} = {HIDDEN}"
    default = "" if parameter.default is parameter.empty else f" = {short_value(parameter.default, 40)}"
    return f"{parameter.name}{said}{default}"
