"""The inputs of a workflow from the command line (`-i K=V`, or a file), and the options of a resume.

Secret inputs stay out of the shell history, the process list and the screen: `-i token=@env:NAME` reads an environment
variable, `-i token=@file:PATH` a file, and `-i token=-` asks at a terminal, or reads a line of standard input. A secret
input that is not given is read from `FLOWCKPT_SECRET_TOKEN`, or else asked for at a terminal.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from flowckpt.cli.config.read import PREFIX_OF_INPUTS, check_program, parse_toml, variables_of_inputs
from flowckpt.cli.options import collect_pairs, find_user_name, split_pair
from flowckpt.cli.render.terminal import escape, is_person_there, short_value
from flowckpt.cli.values import MisfitError, expected_text, from_json, from_text
from flowckpt.core.dsl import Workflow
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records.listing import IMPORTED
from flowckpt.core.system.secret import HIDDEN, Secret
from flowckpt.engine.values.options import RunOptions, TypedOutput
from flowckpt.engine.values.target import load_target, parse_target
from flowckpt.errors import InputError, TargetError


def convert_inputs(
    workflow: Workflow[..., Any], texts: Mapping[str, str], document: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the inputs, converted to the types of the workflow's parameters.

    Args:
        workflow: the workflow.
        texts: inputs as text, by name; they take precedence over the document. Secret ones may name the place of the value.
        document: inputs from a JSON or TOML file.

    Raises:
        InputError: a name is unknown, or a value does not fit its parameter.
    """
    values: dict[str, Any] = {}
    for name, value in (document or {}).items():
        if name in workflow.secret_inputs and name not in texts:
            values[name] = read_secret(workflow, name, value, is_text=False)
        elif name not in texts:
            values[name] = _convert_input(workflow, name, value, from_json)
    for name, text in texts.items():
        if name in workflow.secret_inputs:
            values[name] = read_secret(workflow, name, text, is_text=True)
        else:
            values[name] = _convert_input(workflow, name, text, from_text)
    return values


def read_inputs_file(file: str) -> dict[str, Any]:
    """Return the object in a file of inputs.

    Args:
        file: a JSON file, a TOML file (by its name), or `-` for JSON on standard input.

    Raises:
        InputError: the file cannot be read, or does not hold an object.
    """
    source = "standard input" if file == "-" else file
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"the inputs in {source} cannot be read: {error.strerror}") from error
    try:
        document = parse_toml(text) if file.endswith(".toml") else json.loads(text)
    except ValueError as error:
        kind = "TOML" if file.endswith(".toml") else "JSON"
        raise InputError(f"the inputs in {source} are not valid {kind}: {error}") from error
    if not isinstance(document, dict):
        raise InputError(
            f"the inputs in {source} must be an object, got {short_value(document, 80)}",
            remedy='Write {"name": value, …}.',
        )
    return document


def _convert_input(workflow: Workflow[..., Any], name: str, value: Any, convert: Callable[[Any, Any], Any]) -> Any:
    parameter = workflow.signature.parameters.get(name)
    if parameter is None:
        known = ", ".join(map(_describe_parameter, workflow.signature.parameters.values())) or "none"
        raise InputError(
            f"workflow {workflow.name!r} has no input {name!r}", parameter=name, remedy=f"Its inputs: {known}."
        )
    with _refuse_misfits(
        f"input {name!r} of workflow {workflow.name!r}", name, lambda: f"defined as {_describe_parameter(parameter)}"
    ):
        return convert(value, _find_annotation(workflow, parameter))


@contextmanager
def _refuse_misfits(what: str, name: str, definition: Callable[[], str]) -> Iterator[None]:
    """Turn a misfit into an error that names its place."""
    try:
        yield
    except MisfitError as misfit:
        place = f" at {name}{misfit.place}" if misfit.place else ""
        raise InputError(
            f"{what} must be {misfit.expected}{place}, got {short_value(misfit.got, 80)}",
            parameter=name,
            remedy=f"It is {definition()}.",
        ) from misfit


def _find_annotation(workflow: Workflow[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter: its annotation, else the type of its default."""
    annotation = workflow.hints.get(parameter.name, Any)
    if annotation is not Any:
        return annotation
    default = parameter.default
    return Any if default is parameter.empty or default is None else type(default)


def _describe_parameter(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        type_text = f": {annotation}"
    else:
        type_text = "" if annotation is parameter.empty else f": {inspect.formatannotation(annotation)}"
    type_text = type_text.replace("pathlib._local.", "pathlib.")  # Python 3.13 shows the class's private module
    if isinstance(parameter.default, Secret):
        return f"{parameter.name}{type_text} = {HIDDEN}"
    default = "" if parameter.default is parameter.empty else f" = {short_value(parameter.default, 40)}"
    return f"{parameter.name}{type_text}{default}"


# Outputs of steps on the command line: `--set STEP=JSON`.


def parse_edits(texts: Mapping[str, str], option: str = "--set") -> dict[str, Callable[[Any], Any]]:
    """Return, for each step, a function that converts its output, given the annotation of the step's function.

    Args:
        texts: JSON, by step.
        option: the option, for the error.

    Raises:
        InputError: a text is not JSON, or contains the value of a secret input from the environment.
    """
    outputs = {step: _parse_output(step, text, option) for step, text in texts.items()}
    refuse_known_secrets(output=outputs)
    return {step: partial(_convert_output, step, output) for step, output in outputs.items()}


def _parse_output(step: str, text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{option} {step}={text[:60]} is not JSON: {error}",
            parameter=step,
            remedy=f"Put text in double quotes: {option} '{step}=\"text\"'.",
        ) from error


def _convert_output(step: str, value: Any, annotation: Any) -> Any:
    definition = "the return annotation of the step's function"
    with _refuse_misfits(f"the output of step {step!r}", step, lambda: definition):
        return from_json(value, annotation)


# The workflow of a command: typed, or recorded.


def load_typed_target(text: str) -> tuple[Workflow[..., Any], dict[str, str]]:
    """Load a typed target; return its workflow and its description for the record.

    Args:
        text: `path/to/file.py[:workflow]` or `package.module[:workflow]`.

    Raises:
        TargetError: the workflow does not exist.
    """
    described = parse_target(text)
    workflow = _load_workflow(described, text)
    if not described["name"]:
        described["name"] = _find_name(workflow)
    if module := described.get("module"):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            described["file"] = str(Path(file).absolute())
    return workflow, described


def describe_target(described: Mapping[str, str]) -> str:
    """Describe the recorded target of a run and the directory in which it was started."""
    place = described.get("file") or described.get("module")
    program = f"the program {place}:{described.get('name', '')}" if place else "no program"
    return f"{program} in directory {described.get('cwd') or '(not recorded)'}"


def refuse_import(metadata: Mapping[str, Any], workflow_id: str) -> None:
    """Refuse to load the target that the record of an imported run names.

    Raises:
        TargetError: the run was imported.
    """
    if IMPORTED not in metadata:
        return
    described: Mapping[str, str] = metadata.get("target", {})
    raise TargetError(
        f"run {workflow_id!r} was imported: its record, whose author is unknown, names {describe_target(described)}",
        target=described.get("file") or described.get("module") or "",
        remedy="The program was not imported into this process. Inspect it, then run 'flowckpt resume' with "
        "--accept-import; or name the program yourself: --target.",
    )


def find_target_here(described: Mapping[str, str]) -> dict[str, str] | None:
    """Return the recorded target at the same place below the current directory; None if its file is not there."""
    file, cwd = described.get("file"), described.get("cwd")
    if not file or not cwd or not Path(file).is_relative_to(cwd):
        return None
    here = Path.cwd() / Path(file).relative_to(cwd)
    return {**described, "file": str(here), "cwd": str(Path.cwd())} if here.is_file() else None


def load_recorded_target(described: Mapping[str, str], workflow_id: str) -> Workflow[..., Any]:
    """Load the target that the record of a run names; see `refuse_import` for imported runs.

    Args:
        described: the target.
        workflow_id: the run, for errors.

    Raises:
        TargetError: the record names no target, or the target does not exist.
        UntrustedStoreError: another user can change the program.
    """
    if not described.get("name") or not (described.get("file") or described.get("module")):
        raise TargetError(
            f"the record of run {workflow_id!r} has no target",
            target="",
            remedy="Its workflow was defined inside a function. Name a target "
            "(--target path/to/file.py:workflow), or resume it from its program: engine.resume_sync(workflow, …).",
        )
    check_program(described)
    file, module = described.get("file", ""), described.get("module", "")
    moved = TargetError(
        f"there is no {f'module {module!r} and no ' if module else ''}file {file}, where run {workflow_id!r} has its workflow",
        target=file,
        remedy=f"If it has moved, name its new place: --target path/to/file.py:{described['name']}"
        + (f", or --target package.module:{described['name']}." if module else "."),
    )
    is_there = not file or Path(file).is_file()
    if not (is_there or module):
        raise moved
    importable = {part: value for part, value in described.items() if part != "file" or is_there}
    try:
        return _load_workflow(importable, f"{file or module}:{described['name']}")
    except TargetError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{module}.".startswith(f"{missing.name}.") and not is_there:
            raise moved from None
        raise


def _load_workflow(described: Mapping[str, str], place: str) -> Workflow[..., Any]:
    try:
        return load_target(described, shown=place)
    except SystemExit as error:
        raise TargetError(
            f"{place} exits when it is imported (with {error.code!r:.80})",
            target=place,
            remedy="Put its main program under: if __name__ == '__main__'.",
        ) from error


def _find_name(workflow: Workflow[..., Any]) -> str:
    module = sys.modules[workflow.function.__module__]
    return next(name for name, value in vars(module).items() if value is workflow)


def make_run_options(policy: dict[str, Any], by: str | None = None, **more: Any) -> RunOptions:
    """Return the options of a resume or a plan.

    Args:
        policy: the values of `policy_options` and of other options named like fields of `RunOptions`.
        by: who decides about steps in doubt; by default the user of the machine.
        **more: further fields.
    """
    if policy["done"] or policy["not_done"]:
        more["settled_by"] = find_user_name() if by is None else by
        refuse_known_secrets(sender=more["settled_by"], comment=policy.get("comment"))
    elif policy.get("comment"):
        raise click.UsageError("--comment belongs to a decision: give --done or --not-done too")
    return RunOptions(**{**policy, "done": _parse_settled_outputs(policy["done"])}, **more)


def _parse_settled_outputs(values: tuple[str, ...]) -> dict[str, Any]:
    """Return the outputs of `--done`, by step."""
    texts = collect_pairs(map(split_pair, values), "--done")
    makers = parse_edits({step: text for step, text in texts.items() if text is not None}, "--done")
    return {step: ... if text is None else TypedOutput(text, makers[step]) for step, text in texts.items()}


_HINT = "Give it as @env:NAME or @file:PATH, or as - to be asked."


def read_secret(workflow: Workflow[..., Any], name: str, value: Any, *, is_text: bool) -> Secret[Any] | None:
    """Return the value of a secret input given by `-i` or in a file of inputs.

    Args:
        workflow: the workflow.
        name: the input.
        value: a text, which may name the place of the value, or a JSON value.
        is_text: whether a text is parsed as on the command line; otherwise it is taken literally.

    Raises:
        InputError: the named place has no value, or the value does not fit the annotation. The value is not shown.
    """
    if value is None:
        return None
    if isinstance(value, str) and (text := _fetch_secret(name, value)) is not None:
        return _convert_secret(workflow, name, text, is_text=True)
    return _convert_secret(workflow, name, value, is_text=is_text)


def list_known_secrets() -> list[Any]:
    """Return the values of secret inputs in the environment, as texts and as the numbers that they are."""
    texts = [text for name, text in os.environ.items() if name.startswith(PREFIX_OF_INPUTS)]
    return [*texts, *(each for each in map(read_plain_json, texts) if isinstance(each, int | float))]


def read_plain_json(text: str) -> Any:
    """Return the JSON value that a text is, or the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def refuse_known_secrets(**given: Any) -> None:
    """Refuse to record the value of a secret input from the environment.

    Args:
        given: JSON trees, each under the name of its option.

    Raises:
        InputError: a tree contains such a value.
    """
    known = KnownSecrets(list_known_secrets())
    for name, value in given.items():
        if place := known.place_in(value, f"the {name}"):
            raise InputError(
                f"{place} contains the value of a secret input ({PREFIX_OF_INPUTS}…), and would be recorded",
                parameter=name,
                remedy="Omit it, or name the secret instead of its value.",
            )


def ask_for_secrets(
    workflow: Workflow[..., Any], names: Iterable[str], inputs: dict[str, Any], *, at_terminal: bool = True
) -> None:
    """Add secret inputs that were not given, from their variables or by asking.

    Args:
        workflow: the workflow.
        names: the needed secret inputs.
        inputs: the inputs so far; found values are added, missing ones are left out.
        at_terminal: whether a person may be asked.
    """
    for name in names:
        if name in inputs:
            continue
        text = os.environ.get(f"{PREFIX_OF_INPUTS}{name.upper()}")
        if text is None and at_terminal and is_person_there():
            text = _ask_for_secret(name)
        if text is not None:
            inputs[name] = _convert_secret(workflow, name, text, is_text=True)


def _fetch_secret(name: str, text: str) -> str | None:
    """Return the value at the place named by a text; None if the text is the value itself."""
    if text == "-":
        return _ask_for_secret(name) if is_person_there() else _read_line(name)
    kind, _, place = text.partition(":")
    if kind == "@env":
        value = os.environ.get(place)
        if value is None:
            raise InputError(
                f"the secret input {name!r} names the environment variable {place!r}, which is not set",
                parameter=name,
                remedy="Set it, but not on a command line, which would show its value.",
            )
        variables_of_inputs.add(place)
        return value
    if kind == "@file":
        try:
            return Path(place).read_text("utf-8").removesuffix("\n")
        except (OSError, UnicodeError) as error:
            why = (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(
                f"the secret input {name!r} cannot be read from the file {place!r}: {why}", parameter=name
            ) from None
    if text.startswith("@"):
        raise InputError(
            f"the secret input {name!r} starts with @, but is neither @env:NAME nor @file:PATH",
            parameter=name,
            remedy="Put a value that starts with @ into a variable or a file.",
        )
    return None


def _read_line(name: str) -> str:
    line = "" if sys.stdin is None else sys.stdin.readline()
    if not line:
        raise InputError(
            f"the secret input {name!r} is to be read from standard input, which is empty", parameter=name, remedy=_HINT
        )
    return line.removesuffix("\n")


def _ask_for_secret(name: str) -> str:
    """Ask at the terminal until something was typed.

    `click.prompt` shows the question first and then discards everything typed until echo is off, even Ctrl-C.
    `getpass` shows the question when it is ready.
    """
    import getpass  # noqa: PLC0415 - most runs have no secret, and are not asked

    try:
        while not (line := getpass.getpass(f"{escape(name)} (secret, not shown): ", sys.stderr)):
            pass
    except (KeyboardInterrupt, EOFError):
        click.echo(err=True)  # the typed line does not end the question's line
        raise click.Abort from None
    return line


def _convert_secret(workflow: Workflow[..., Any], name: str, value: Any, *, is_text: bool) -> Secret[Any]:
    annotation = workflow.secret_inputs[name]
    try:
        return Secret((from_text if is_text else from_json)(value, annotation))
    except MisfitError:
        pass
    raise InputError(  # after the handler: the cause holds the value
        f"the secret input {name!r} of workflow {workflow.name!r} must be {expected_text(annotation)}, got {HIDDEN}",
        parameter=name,
        remedy=_HINT,
    )
