"""Whether a step is still the step that made a recorded result: its code, its arguments, its version tag.

Its place, its action and the name of its function are replay's business: where those differ, it is another step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.actions import Action, PythonAction
from flowckpt.core.identity.arguments import (
    NONE,
    UNKNOWN,
    argument_differences,
    recorded_arguments,
    recorded_positional,
    shown_arguments,
)
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.identity.function import KnownFunction, known_of
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import PartialState, StepResult
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from flowckpt.core.dsl import composites
else:
    composites = LazyModule("flowckpt.core.dsl.composites")


def fingerprint_of(action: Action) -> str:
    """Return what identifies the code of an action; empty where it has none, or none that can be known.

    Args:
        action: the action.
    """
    return step_fingerprint(action.function) if type(action) is PythonAction else ""


def arguments_of(action: Action, secrets: KnownSecrets = NONE) -> dict[str, Any]:
    """Return what a record keeps of the arguments of an action.

    Args:
        action: the action.
        secrets: what the record must not hold; it learns the secrets that are passed.
    """
    if type(action) is PythonAction:
        return recorded_arguments(action.function, action.args, action.kwargs, secrets)
    if action.is_command:
        return recorded_arguments(_command, (), action.identity, secrets)
    if action.is_composite and isinstance(action, composites.WorkflowAction):
        return recorded_arguments(action.workflow.function, (), action.inputs, secrets)
    if action.is_waiting:
        return recorded_arguments(_waited_for, (), action.identity)
    return {}


def identity_of(action: Action, secrets: KnownSecrets = NONE) -> tuple[str, dict[str, Any]]:
    """Return what identifies the code of an action, and what a record keeps of its arguments.

    Args:
        action: the action.
        secrets: what the record must not hold; it learns the secrets that are passed.
    """
    known = known_of(action)
    if known is None:
        return fingerprint_of(action), arguments_of(action, secrets)
    assert isinstance(action, PythonAction)
    return known.fingerprint, known_arguments(action, known, secrets)


def known_arguments(action: PythonAction, known: KnownFunction, secrets: KnownSecrets) -> dict[str, Any]:
    """Return what `arguments_of` does, where the function is looked up already.

    Args:
        action: the action.
        known: what is known of its function.
        secrets: what the record must not hold; it learns the secrets that are passed.
    """
    args = action.args
    if not action.kwargs and len(args) <= len(known.parameters):
        return recorded_positional(known.parameters, args, secrets)
    return recorded_arguments(action.function, args, action.kwargs, secrets)


def identity_reasons(
    step: Step[Any], result: StepResult | PartialState, secrets: KnownSecrets = NONE
) -> tuple[Reason, ...]:
    """Return why a recorded result is not the result of this step; nothing where it is.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path, or what it saved of itself.
        secrets: what the record does not hold, and nobody is shown.
    """
    action = step.action
    code, arguments = identity_of(action, secrets)
    recorded = result.arguments
    if (
        code == result.fingerprint
        and step.modifiers.version == result.version
        and repr(arguments) == repr(recorded)  # as values, 1 == 1.0 == True
    ):
        return ()  # as nearly always
    return tuple(_reasons(step, result, arguments, code, secrets))


def is_plainly_same(action: Action, known: KnownFunction, result: StepResult, secrets: KnownSecrets = NONE) -> bool:
    """Tell whether a recorded result is that of the same call, where a glance shows it: 0.7 µs, not 2.

    Args:
        action: the action as it is yielded now; its version tag is the caller's business.
        known: what is known of its function.
        result: the recorded result of its path.
        secrets: what the record does not hold.

    Returns:
        Of a call with other arguments than whole numbers, nothing is said: False.
    """
    assert isinstance(action, PythonAction)
    args, recorded = action.args, result.arguments
    if known.fingerprint != result.fingerprint or action.kwargs or len(args) != len(recorded) or secrets.is_any:
        return False
    for name, value in zip(known.parameters, args, strict=False):
        then = recorded.get(name)
        if type(value) is not int or type(then) is not int or value != then:
            return False
    return len(args) <= len(known.parameters)


def incomparable_reasons(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return which arguments nobody can compare with the recorded ones: a model, a connection, a plain object.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
        secrets: what the record does not hold.
    """
    now = arguments_of(step.action, secrets)
    names = [name for name in now if UNKNOWN in (now[name], result.arguments.get(name))]
    return tuple(
        Reason(ReasonKind.ARGUMENTS, f"{name}: cannot be compared, and a step before it runs again") for name in names
    )


def _reasons(
    step: Step[Any], result: StepResult | PartialState, arguments: dict[str, Any], code: str, secrets: KnownSecrets
) -> list[Reason]:
    reasons: list[Reason] = []
    if step.modifiers.version != result.version:
        detail = f"recorded {result.version!r}, now {step.modifiers.version!r}"
        reasons.append(Reason(ReasonKind.VERSION, detail))
    if code and result.fingerprint and code != result.fingerprint and _form(code) == _form(result.fingerprint):
        named = step.action.function_name.rpartition(":")[2]
        where = f" ({step.action.function_name})" if named else ""
        reasons.append(Reason(ReasonKind.CODE, f"{named}(), or a helper in its module that it uses, was edited{where}"))
    action = step.action
    shown: dict[str, str] = {}
    if type(action) is PythonAction:
        shown = shown_arguments(action.function, action.args, action.kwargs, secrets)
    moved = argument_differences(result.arguments, arguments, shown)
    reasons += [Reason(ReasonKind.ARGUMENTS, line) for line in moved]
    return reasons


def _form(fingerprint: str) -> str:
    """Return the number of the normal form: digests of two forms cannot be compared."""
    return fingerprint.partition(":")[0]


def _command(argv: Any, cwd: Any, env: Any, stdin: Any) -> None:
    """Name the arguments of a command for the record."""


def _waited_for(signal: Any = None, approval: Any = None, of: Any = None) -> None:
    """Name the arguments of a wait for the record."""
