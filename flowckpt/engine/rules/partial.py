"""Is what a step saved of itself still that step's? Rules, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import Step
from flowckpt.core.identity.arguments import NONE
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.engine.rules.identity import identity_reasons
from flowckpt.engine.rules.paths import is_within
from flowckpt.engine.rules.reasons import Reason, ReasonKind, ResumePolicy, ReuseMode

if TYPE_CHECKING:
    from flowckpt.core.records import PartialState


GOES_ON = Reason(ReasonKind.STARTED, "it continues from its saved state")
"""The text of a plan for a step whose state is still its own."""


def partial_reasons(step: Step[Any], partial: PartialState, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return what has moved since a step saved a state; nothing where it is the same step, called with the same.

    Args:
        step: the step as it is yielded now.
        partial: what a step of its path saved.
        secrets: what the record does not hold, and nobody is shown.
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
