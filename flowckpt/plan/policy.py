"""What follows when a recorded result is stale: chosen per resume, decided by one function."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import attrs

from flowckpt.fieldwise import Fieldwise
from flowckpt.plan.reason import Reason, ReasonKind


class OnStale(StrEnum):
    """What to do with a result whose facts, or whose code, have moved."""

    RERUN = "rerun"
    """Run the step again."""
    REUSE = "reuse"
    """Take the recorded result all the same."""
    FAIL = "fail"
    """Stop before anything is run."""


class ReuseMode(StrEnum):
    """How far a resume goes on comparing."""

    PREFIX = "prefix"
    """Everything from the first stale step on is run again."""
    INPUTS = "inputs"
    """Behind a stale step, a recorded result is reused where the step is called with the same arguments, as build tools do."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ResumePolicy(Fieldwise):
    """What a resume does with stale results.

    Attributes:
        on_stale: what to do where evidence, arguments or the version tag have moved. Not given, what has moved is run
            again, and what cannot be checked stops the resume.
        on_code_change: what to do where the function was edited.
        reuse: how far to go on comparing.
        from_path: the step from which on everything is run again; empty for none.
        is_forced: whether to run again what a resume would stop at: stale results, steps in doubt, and everything
            from where the workflow yields something else than the record says.
    """

    on_stale: OnStale | None = None
    on_code_change: OnStale = OnStale.FAIL
    reuse: ReuseMode = ReuseMode.PREFIX
    from_path: str = ""
    is_forced: bool = False

    def decide(self, reasons: Iterable[Reason]) -> OnStale:
        """Return what to do with a recorded result.

        What somebody asked to be run again is run, whatever else has moved. Else to stop weighs more than to run again,
        and that more than to reuse: the reasons are answered one by one, and the heaviest answer wins.

        Args:
            reasons: why the result is stale; none, and it is reused.
        """
        reasons = tuple(reasons)
        if any(reason.kind is ReasonKind.FORCED for reason in reasons):
            return OnStale.RERUN
        answers = {self._answer(reason) for reason in reasons}
        if OnStale.FAIL in answers:
            return OnStale.RERUN if self.is_forced else OnStale.FAIL
        return OnStale.RERUN if OnStale.RERUN in answers else OnStale.REUSE

    def _answer(self, reason: Reason) -> OnStale:
        if reason.kind is ReasonKind.CODE:
            return self.on_code_change
        if not reason.makes_stale:
            return OnStale.RERUN
        if self.on_stale is not None:
            return self.on_stale
        # Hours of work are not thrown away because a server did not answer, nor is its answer guessed.
        return OnStale.RERUN if reason.is_proved else OnStale.FAIL
