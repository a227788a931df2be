"""The identity of a call: its function, the code of it, its arguments, its version tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any

import attrs

from flowckpt.core.codec import tags
from flowckpt.core.codec.types import is_structured, return_annotation
from flowckpt.core.dsl.actions import Action, PythonAction, function_name
from flowckpt.core.identity import classes
from flowckpt.core.identity.arguments import NONE, positional_parameters, recorded_arguments, recorded_positional
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.system.functions import cached_per_function

tags.use_program_classes(classes)


@attrs.define(eq=False, repr=False)
class CallIdentity:
    """The identity of a call as a record keeps it, to compare it with the same call later.

    Attributes:
        function: `module:qualname`; empty for an action without a function.
        fingerprint: the identity of its code; empty for none, or for one that cannot be known.
        arguments: what the record keeps of its arguments, by parameter.
        version: the version tag of the step, or None.
        returns_plain: whether its output is built of the closed set alone, as far as the annotation of a plain function
            says; no part of the identity.
    """

    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    version: str | None = None
    returns_plain: bool = False


@attrs.frozen(eq=False, repr=False)
class FunctionInfo:
    """The facts about a plain function.

    Attributes:
        name: `module:qualname`.
        fingerprint: the identity of its code; empty if that cannot be known.
        parameters: the names of its positional parameters.
        is_plain: whether its output is built of the closed set alone, as far as its annotation says.
    """

    name: str
    fingerprint: str
    parameters: tuple[str, ...]
    is_plain: bool


@cached_per_function
def _info(function: Callable[..., Any]) -> FunctionInfo:
    return FunctionInfo(
        function_name(function),
        step_fingerprint(function),
        positional_parameters(function),
        not is_structured(return_annotation(function)),
    )


def function_info(action: Action) -> FunctionInfo | None:
    """Return what is known of the function of an action; None for a method, a partial or a callable object.

    It is looked up once for each function: four questions to four caches at each call take 1 µs.
    """
    if type(action) is PythonAction and type(action.function) is FunctionType:
        return _info(action.function)
    return None


def identify(action: Action, secrets: KnownSecrets = NONE, version: str | None = None) -> CallIdentity:
    """Return what makes the call of an action the same call.

    Args:
        action: the action.
        secrets: what the record must not hold; it learns the secrets that are passed.
        version: the version tag of its step.
    """
    if type(action) is not PythonAction:
        return CallIdentity(action.function_name, "", _arguments(action, secrets), version)
    function, args, kwargs = action.function, action.args, action.kwargs
    if type(function) is not FunctionType:
        arguments = recorded_arguments(function, args, kwargs, secrets)
        return CallIdentity(action.function_name, step_fingerprint(function), arguments, version)
    info = _info(function)
    if not kwargs and len(args) <= len(info.parameters):
        arguments = recorded_positional(info.parameters, args, secrets)
    else:
        arguments = recorded_arguments(function, args, kwargs, secrets)
    return CallIdentity(info.name, info.fingerprint, arguments, version, info.is_plain)


def _arguments(action: Action, secrets: KnownSecrets) -> dict[str, Any]:
    if action.is_command:
        return recorded_arguments(_command, (), action.identity, secrets)
    if action.step_type == "workflow":
        child: Any = action
        return recorded_arguments(child.workflow.function, (), child.inputs, secrets)
    if action.step_type == "start":
        started: Any = action
        return recorded_arguments(started.workflow.function, (), started.inputs, secrets)
    if action.step_type in ("signal", "reply"):
        return recorded_arguments(_sent if action.step_type == "signal" else _replied, (), action.arguments(), secrets)
    if action.step_type == "publish":
        return recorded_arguments(_published, (), action.arguments(), secrets)
    if action.is_waiting:
        return recorded_arguments(_waited_for, (), action.identity, secrets)
    return {}


def _command(argv: Any, cwd: Any, env: Any, stdin: Any) -> None:
    """Name the arguments of a command for the record."""


def _sent(run: Any, signal: Any, data: Any) -> None:
    """Name the arguments of a signal for the record."""


def _replied(to: Any, value: Any) -> None:
    """Name the arguments of a reply for the record."""


def _published(value: Any) -> None:
    """Name the argument of a publication for the record."""


def _waited_for(signal: Any = None, approval: Any = None, of: Any = None, ask: Any = None) -> None:
    """Name the arguments of a wait for the record."""
