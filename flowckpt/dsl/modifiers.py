"""What a step's modifiers say, apart from its action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.dsl import retry as retries
    from flowckpt.dsl.placement import Placement
    from flowckpt.dsl.retry import RetryPolicy
else:  # few steps are tried again, or say where they run
    retries = LazyModule("flowckpt.dsl.retry")


@attrs.frozen(repr=False)
class ClaimedEvidence:
    """What `.evidence()` was given.

    Attributes:
        claims: claims, packs, and functions that make them of the step's result, in the order in which they were given.
        require_all: whether every claim must hold.
        min_verified: how many must hold where not all have to; None where nothing was said.
    """

    claims: tuple[Any, ...]
    require_all: bool = True
    min_verified: int | None = None


@attrs.frozen(repr=False)
class Modifiers:
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


def claimed_evidence(
    name: str, claims: tuple[Any, ...], require_all: bool, min_verified: int | None
) -> ClaimedEvidence:
    """Check the arguments of `.evidence()` and return them as one value."""
    if not claims:
        raise StepDefinitionError(
            f"step {name!r}: .evidence() is given no claim",
            step=name,
            where=caller(),
            remedy='Give it claims: .evidence(file_sha256("rows.csv")), or a function of the result that returns some.',
        )
    for claim in claims:
        if not (hasattr(claim, "evidence_type") or hasattr(claim, "evidence_list") or callable(claim)):
            raise StepDefinitionError(
                f"step {name!r}: .evidence() takes claims and functions that make them, got {claim!r:.80} "
                f"({type(claim).__name__})",
                step=name,
                where=caller(),
                remedy="Use the constructors of flowckpt.evidence, and no list around them.",
            )
    if type(require_all) is not bool:
        raise StepDefinitionError(
            f"step {name!r}: .evidence(require_all={require_all!r}) must be True or False", step=name, where=caller()
        )
    if min_verified is not None and (type(min_verified) is not int or min_verified < 1):
        raise StepDefinitionError(
            f"step {name!r}: .evidence(min_verified={min_verified!r}) must be a whole number from 1",
            step=name,
            where=caller(),
            remedy="It counts the claims that must hold, where not all have to.",
        )
    if min_verified is not None and min_verified > len(claims) and not any(callable(claim) for claim in claims):
        raise StepDefinitionError(
            f"step {name!r}: .evidence(min_verified={min_verified}) with only {len(claims)} claims could never hold",
            step=name,
            where=caller(),
            remedy="Add claims, or ask for fewer.",
        )
    has_pack = any(hasattr(claim, "evidence_list") for claim in claims)
    if has_pack and (len(claims) > 1 or not require_all or min_verified is not None):
        raise StepDefinitionError(
            f"step {name!r}: .evidence() is given a pack and something beside it",
            step=name,
            where=caller(),
            remedy="A pack has its own policy and all its claims: give it alone.",
        )
    return ClaimedEvidence(claims, require_all, min_verified)


def checked_timeout(name: str, seconds: float) -> float:
    """Check the argument of `.timeout()` and return it as a float."""
    if not retries.is_number(seconds) or seconds <= 0:
        raise StepDefinitionError(
            f"step {name!r}: .timeout({seconds!r}) must be seconds above 0", step=name, where=caller()
        )
    return float(seconds)
