"""Says of one recorded result whether it is still true, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import identify
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import StepResult
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.identity import identity_reasons, incomparable_reasons
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind, ResumePolicy

if TYPE_CHECKING:
    from flowckpt.engine.rules import in_doubt as in_doubts
    from flowckpt.evidence.report import VerificationReport
else:
    in_doubts = LazyModule("flowckpt.engine.rules.in_doubt")


@attrs.frozen(eq=False, repr=False)
class Judge:
    """Compares recorded results with the steps as they are yielded now, and with the answers of the world.

    Attributes:
        policy: what follows when something has moved.
        reports: the answers to the claims of the recorded results, by path; asked again where the world has moved on.
        secrets: the secrets of the run, which no record holds.
        saved: those of the answers that a checkpoint of this attempt holds.
    """

    policy: ResumePolicy
    reports: dict[str, VerificationReport] = attrs.field(factory=dict)
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)
    saved: dict[str, VerificationReport] = attrs.field(init=False, factory=dict)

    def reasons(self, step: Step[Any], result: StepResult, *, is_behind_rerun: bool = False) -> tuple[Reason, ...]:
        """Return why a recorded result would not simply be reused.

        Args:
            step: the step as it is yielded now.
            result: the recorded result of its path.
            is_behind_rerun: whether a step before it runs again: what cannot be compared may then have moved.
        """
        reasons = identity_reasons(step, result, self.secrets)
        if is_behind_rerun:
            reasons += incomparable_reasons(step, result, self.secrets)
        if self.reports:
            reasons += self.evidence_reasons(result)
        if self.is_forced(result.path):
            reasons += (Reason(ReasonKind.FORCED, "everything is run again from this step on"),)
        return reasons

    def evidence_reasons(self, result: StepResult) -> tuple[Reason, ...]:
        """Return what the world says against a recorded result.

        Args:
            result: the recorded result.
        """
        report = self.reports.get(result.path)
        found = () if report is None else evidence_reasons(report)
        if self.secrets.is_any:  # what was found in the world may be one
            found = tuple(attrs.evolve(reason, detail=self.secrets.text(reason.detail)) for reason in found)
        return found

    def decide(self, step: Step[Any], result: StepResult, reasons: tuple[Reason, ...]) -> OnStale:
        """Return what to do with a result for these reasons.

        Args:
            step: the step as it is yielded now.
            result: the recorded result of its path.
            reasons: what `reasons` returned.
        """
        return self.policy.decide(reasons, is_done=bool(reasons) and self.repeats_effect(step, result))

    def repeats_effect(self, step: Step[Any], result: StepResult) -> bool:
        """Return whether a rerun repeats an effect that must not be repeated without a person."""
        return in_doubts.repeats_effect(step, result)

    def proves_done(self, step: Step[Any], result: StepResult) -> bool:
        """Tell whether a step that must not be done twice was done, by the same call: an edit does not undo it.

        Args:
            step: the step as it is yielded now.
            result: the recorded result of its path.
        """
        modifiers, report = step.modifiers, self.reports.get(result.path)
        if not modifiers.is_at_most_once or report is None or not report.verified:
            return False
        arguments = identify(step.action, self.secrets).arguments
        return not self.is_forced(result.path) and in_doubts.is_same_call(result, arguments, modifiers.version)

    def is_forced(self, path: str) -> bool:
        """Tell whether somebody asked for a step to be run again, or for one that it is nested in.

        Args:
            path: the step.
        """
        wanted = self.policy.from_path
        return bool(wanted) and (path == wanted or path.startswith(f"{wanted}/"))


def evidence_reasons(report: VerificationReport) -> tuple[Reason, ...]:
    """Return why a report does not let a result be reused; nothing where its claims hold.

    Claims that need not hold at a resume, and none at all, are no reason.

    Args:
        report: the answers to the claims of one step.
    """
    if report.verified or report.outcome == "no_evidence":
        return ()
    is_proved = report.outcome == "failed"
    found = [
        Reason(
            ReasonKind.EVIDENCE,
            "; ".join([verdict.error, *(each for each in verdict.details if each not in verdict.error)]),
            is_proved,
        )
        for verdict in report.verdicts
        if verdict.error is not None and verdict.is_against
    ]
    return tuple(found) or (Reason(ReasonKind.EVIDENCE, report.reason, is_proved),)
