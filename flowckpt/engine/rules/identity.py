"""Whether a step is still the step that made a recorded result, or saved a state: its code, arguments, version tag.

Its place, its action and the name of its function are replay's business: where those differ, it is another step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.actions import Action, PythonAction
from flowckpt.core.identity.arguments import NONE, UNKNOWN, argument_differences, shown_arguments
from flowckpt.core.identity.call import CallIdentity, FunctionInfo, identify
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import PartialState, StepResult
from flowckpt.engine.rules.paths import is_within
from flowckpt.engine.rules.reasons import Reason, ReasonKind, ResumePolicy, ReuseMode


def identity_reasons(
    step: Step[Any], result: StepResult | PartialState, secrets: KnownSecrets = NONE
) -> tuple[Reason, ...]:
    """Return why a recorded result is not the result of this step; nothing where it is.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path, or what it saved of itself.
        secrets: what the record does not hold, and is never shown.
    """
    action = step.action
    call = identify(action, secrets, step.modifiers.version)
    if (
        call.fingerprint == result.fingerprint
        and call.version == result.version
        and repr(call.arguments) == repr(result.arguments)  # as values, 1 == 1.0 == True
    ):
        return ()  # as nearly always
    return tuple(_reasons(action, call, result, secrets))


def moved_reasons(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return what makes a step another call than the one that was recorded, whatever became of its code."""
    return tuple(each for each in identity_reasons(step, result, secrets) if each.kind is not ReasonKind.CODE)


def is_plainly_same(action: Action, info: FunctionInfo, result: StepResult, secrets: KnownSecrets = NONE) -> bool:
    """Tell whether a recorded result is that of the same call, where a glance shows it: 0.7 µs, not 2.

    Args:
        action: the action as it is yielded now; its version tag is the caller's business.
        info: what is known of its function.
        result: the recorded result of its path.
        secrets: what the record does not hold.

    Returns:
        Of a call with other arguments than whole numbers, nothing is said: False.
    """
    assert isinstance(action, PythonAction)
    args, recorded = action.args, result.arguments
    if info.fingerprint != result.fingerprint or action.kwargs or len(args) != len(recorded) or secrets.is_any:
        return False
    for name, value in zip(info.parameters, args, strict=False):
        then = recorded.get(name)
        if type(value) is not int or type(then) is not int or value != then:
            return False
    return len(args) <= len(info.parameters)


def incomparable_reasons(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return which arguments cannot be compared with the recorded ones: a model, a connection, a plain object.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
        secrets: what the record does not hold.
    """
    now = identify(step.action, secrets).arguments
    names = [name for name in now if UNKNOWN in (now[name], result.arguments.get(name))]
    return tuple(
        Reason(ReasonKind.ARGUMENTS, f"{name}: cannot be compared, and a step before it runs again") for name in names
    )


def _reasons(
    action: Action, call: CallIdentity, result: StepResult | PartialState, secrets: KnownSecrets
) -> list[Reason]:
    reasons: list[Reason] = []
    code = call.fingerprint
    if call.version != result.version:
        reasons.append(Reason(ReasonKind.VERSION, f"recorded {result.version!r}, now {call.version!r}"))
    if code and result.fingerprint and code != result.fingerprint and _form(code) == _form(result.fingerprint):
        named = call.function.rpartition(":")[2]
        where = f" ({call.function})" if named else ""
        reasons.append(Reason(ReasonKind.CODE, f"{named}(), or code of the project that it uses, was edited{where}"))
    shown: dict[str, str] = {}
    if type(action) is PythonAction:
        shown = shown_arguments(action.function, action.args, action.kwargs, secrets)
    moved = argument_differences(result.arguments, call.arguments, shown)
    reasons += [Reason(ReasonKind.ARGUMENTS, line) for line in moved]
    return reasons


def _form(fingerprint: str) -> str:
    """Return the number of the normal form: digests of two forms cannot be compared."""
    return fingerprint.partition(":")[0]


# What a step saved of itself before it was interrupted.


GOES_ON = Reason(ReasonKind.STARTED, "it continues from its saved state")
"""The text of a plan for a step whose state is still its own."""


def partial_reasons(step: Step[Any], partial: PartialState, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return what has moved since a step saved a state; nothing where it is the same step, called with the same.

    Args:
        step: the step as it is yielded now.
        partial: what a step of its path saved.
        secrets: what the record does not hold, and is never shown.
    """
    now, was = (name.rpartition(":")[2] for name in (step.action.function_name, partial.function))
    if now != was:
        return (Reason(ReasonKind.CODE, f"its saved state is that of {was}(), and now it is {now}()"),)
    return tuple(
        Reason(each.kind, f"since it saved its state: {each.detail}")
        for each in identity_reasons(step, partial, secrets)
    )


def kept_partial(partial: Mapping[str, PartialState], policy: ResumePolicy) -> dict[str, PartialState]:
    """Return the states that a resume begins with: not those of steps that somebody wants to be run again.

    Args:
        partial: those of its newest checkpoint.
        policy: what the resume was told.
    """
    wanted = policy.from_path
    if not wanted:
        return dict(partial)
    if policy.reuse is ReuseMode.PREFIX:
        return {}
    return {path: each for path, each in partial.items() if not is_within(path, wanted)}
