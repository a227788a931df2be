"""What a step's modifiers say, apart from its action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError
from flowckpt.fieldwise import Fieldwise
from flowckpt.finite import is_finite_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.dsl.claimed_evidence import ClaimedEvidence
    from flowckpt.dsl.placement import Placement
    from flowckpt.dsl.retry import RetryPolicy


@attrs.frozen(eq=False, repr=False)
class Modifiers(Fieldwise):
    """The modifiers of one step.

    Attributes:
        has_checkpoint: whether a checkpoint is taken after the step.
        checkpoint_id: its id, or None for the step's path.
        retry: its retry policy, or None.
        timeout_seconds: the limit of one try, or None.
        is_ephemeral: whether it is never recorded, and run again at each replay.
        version: the tag of `.version()`, or None.
        evidence: the claims of `.evidence()`, or None.
        is_at_most_once: whether a try is marked durably before it begins, and never repeated on a guess.
        adopt: makes the result of a step whose effect is proved although its end was not recorded, or None.
        on_rerun: undoes the recorded effect before the step is run again, or None.
        rollback: undoes the effect when the run fails or is cancelled, or None.
        is_secret: whether its output is shown nowhere and recorded nowhere; then it is ephemeral, too.
        placement: where it runs, or None for where the engine would have it.
    """

    has_checkpoint: bool = False
    checkpoint_id: str | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    is_ephemeral: bool = False
    version: str | None = None
    evidence: ClaimedEvidence | None = None
    is_at_most_once: bool = False
    adopt: Callable[..., Any] | None = None
    on_rerun: Callable[[Any], Any] | None = None
    rollback: Callable[[Any], Any] | None = None
    is_secret: bool = False
    placement: Placement | None = None

    @property
    def looks_back(self) -> bool:
        """Whether the step must look at its recorded result before it is run again."""
        return self.is_at_most_once or self.on_rerun is not None


PLAIN = Modifiers()
CHECKPOINTED = Modifiers(has_checkpoint=True)


def checked_together(name: str, modifiers: Modifiers) -> Modifiers:
    """Return modifiers that do not contradict each other.

    Args:
        name: the step.
        modifiers: what it was given so far.

    Raises:
        StepDefinitionError: one of them needs a record, and another says that there is to be none.
    """
    if not modifiers.is_ephemeral:
        return modifiers
    remedy = "An ephemeral step is never recorded and runs at each replay; leave out one of the two."
    kind = "ephemeral"
    if modifiers.is_secret:
        kind = "secret"
        remedy = (
            "The output of a secret step is never recorded, and the step runs at each replay; leave out one of the two."
        )
    if modifiers.has_checkpoint:
        raise StepDefinitionError(
            f"step {name!r} is .{kind}() and has a .checkpoint()",
            step=name,
            where=caller(),
            remedy=f"{'A secret' if modifiers.is_secret else 'An ephemeral'} step is never recorded; put the checkpoint on "
            "the step before it.",
        )
    for which, is_given in (
        ("at_most_once", modifiers.is_at_most_once),
        ("on_rerun", modifiers.on_rerun is not None),
        ("rollback", modifiers.rollback is not None),
        ("adopt", modifiers.adopt is not None and modifiers.is_secret),
        ("on", modifiers.placement is not None),  # what it makes is for the engine's own process
    ):
        if is_given:
            raise StepDefinitionError(
                f"step {name!r} is .{kind}() and has .{which}()", step=name, where=caller(), remedy=remedy
            )
    return modifiers


def refuse_needless_ephemeral(name: str) -> NoReturn:
    """Refuse `.secret()` and `.ephemeral()` on one step.

    Args:
        name: the step.

    Raises:
        StepDefinitionError: always.
    """
    raise StepDefinitionError(
        f"step {name!r} is .secret() and .ephemeral()",
        step=name,
        where=caller(),
        remedy="A secret step is run again at each replay as it is; leave .ephemeral() out.",
    )


def checked_timeout(name: str, seconds: float) -> float:
    """Check the argument of `.timeout()` and return it as a float."""
    if not is_finite_number(seconds) or seconds <= 0:
        raise StepDefinitionError(
            f"step {name!r}: .timeout({seconds!r:.80}) must be seconds above 0", step=name, where=caller()
        )
    return float(seconds)
