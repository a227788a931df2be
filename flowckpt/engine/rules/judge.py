"""Says of one recorded result whether it is still true, and what follows.

First by identity: whether the step is still the step that made the result, or saved a state (its code, arguments, version
tag). Its place, its action and the name of its function are replay's business: where those differ, it is another step.
Then by the world: whether the claims of the result still hold.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt.core.codec.results import arguments_form, origin_fields
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.modifiers import declared_files
from flowckpt.core.dsl.step import Action, PythonAction
from flowckpt.core.identity.call import (
    NONE,
    UNKNOWN,
    CallIdentity,
    FunctionInfo,
    argument_differences,
    function_info,
    identify,
    recorded_arguments,
    recorded_positional,
    shown_arguments,
)
from flowckpt.core.identity.fingerprint import code_of
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import PartialState, StepResult
from flowckpt.engine.rules import in_doubt as in_doubts
from flowckpt.engine.rules.paths import handled_after, is_within
from flowckpt.engine.rules.reasons import NONDETERMINISM, OnStale, Reason, ReasonKind, ResumePolicy, ReuseMode

if TYPE_CHECKING:
    from flowckpt.evidence.report import Verdict, VerificationReport


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


def plainly_same(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> FunctionInfo | None:
    """Return what is known of the function of a step if a glance shows that a recorded result is that of the same call.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
        secrets: what the record does not hold.
    """
    action: Any = step.action
    info = function_info(action)
    if info is None or secrets.is_any or not result.success or result.evidence is not None:
        return None
    args, names, recorded = action.args, info.parameters, result.arguments
    if (
        info.fingerprint != result.fingerprint
        or info.name != result.function
        or step.modifiers.version != result.version
        or result.step_type != "python"
    ):
        return None
    if action.kwargs:
        now = recorded_arguments(action.function, args, action.kwargs, secrets)
        return info if repr(now) == repr(recorded) else None
    if not len(args) == len(recorded) <= len(names):
        return None
    for name, value in zip(names, args, strict=False):
        then = recorded.get(name)
        if type(value) is not int or type(then) is not int or value != then:  # 0.7 µs of numbers, and 2 of others
            return info if repr(recorded_positional(names, args, secrets)) == repr(recorded) else None
    return info


PlainCall: TypeAlias = tuple[Any, int, bytes, FunctionInfo | None]
"""A function, with how many arguments it is called, the format of their bytes if they are whole numbers, and what is known of it:
None if the code that made a result is another."""


def plain_call(action: PythonAction, origin: bytes) -> PlainCall:
    """Return what a glance needs to know of a call to compare it with plain results of an origin."""
    function, count, info, form = action.function, len(action.args), function_info(action), b""
    if info is not None:
        made = origin_fields(origin)
        form = arguments_form(info.parameters[:count])
        if (made["function"], made["fingerprint"]) != (info.name, info.fingerprint) or count > len(info.parameters):
            info = None
    return function, count, form, info


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


_NONE: Mapping[str, str] = {}


@attrs.frozen(eq=False, repr=False, slots=False)  # with slots, attrs compiles a `__getattr__` for the cached property
class Judge:
    """Compares recorded results with the steps as they are yielded now, and with the answers of the world.

    Attributes:
        policy: what follows when something has moved.
        reports: the answers to the claims of the recorded results, by path; asked again where the world has moved on.
        secrets: the secrets of the run, which no record holds.
        newest: the attempt that saved last; 0 for none.
        is_same_code: returns whether the workflow's code is that of the newest attempt.
        history: the results among which may be failures that the workflow handled.
        packages: installed packages that have another version now than recorded, by the attempt that used them;
            empty if not asked for.
        saved: those of the answers that a checkpoint of this attempt holds.
    """

    policy: ResumePolicy
    reports: dict[str, VerificationReport] = attrs.field(factory=dict)
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)
    newest: int = 0
    is_same_code: Callable[[], bool] = bool
    history: Sequence[StepResult] = ()
    packages: dict[int, dict[str, str]] = attrs.field(factory=dict)
    saved: dict[str, VerificationReport] = attrs.field(init=False, factory=dict)

    @functools.cached_property
    def _handled_after(self) -> Callable[[str], str]:
        history = () if self.policy.reruns_what_follows else self.history
        return handled_after(history, drops_what_follows=self.policy.reuse is ReuseMode.PREFIX)

    def reasons(
        self,
        step: Step[Any],
        result: StepResult,
        *,
        is_behind_rerun: bool = False,
        is_first: bool = False,
        rewritten: Mapping[str, str | None] | None = None,
    ) -> tuple[Reason, ...]:
        """Return why a recorded result would not simply be reused.

        Args:
            step: the step as it is yielded now.
            result: the recorded result of its path.
            is_behind_rerun: whether a step before it runs again: what cannot be compared may then have moved.
            rewritten: for a plan: the digests of what the steps that run again wrote before, by path; they are assumed to
                write the same again. None for a file of a step that has no result: whatever stands there may be what it writes.
            is_first: whether every step before it was restored, so that none returned anything new.
        """
        reasons = identity_reasons(step, result, self.secrets)
        if reasons and is_first and result.attempt == self.newest and _are_other_arguments(reasons):
            reasons += (NONDETERMINISM,) * self.is_same_code()
        if is_behind_rerun:
            reasons += incomparable_reasons(step, result, self.secrets)
        if self.reports or step.modifiers.files is not None:
            reasons += self.evidence_reasons(result, step, rewritten or _NONE)
        if self.packages:
            reasons += self._package_reasons(step, result)
        if self.is_forced(result.path):
            reasons += (Reason(ReasonKind.FORCED, "everything is run again from this step on"),)
        if any(each.makes_stale for each in reasons) and (handled := self._handled_after(result.path)):
            detail = (
                f"a rerun would try {handled} again, whose failure the workflow handled; what followed is not undone"
            )
            reasons += (Reason(ReasonKind.HANDLED, detail),)
        return reasons

    def evidence_reasons(
        self, result: StepResult, step: Step[Any] | None = None, rewritten: Mapping[str, str | None] = _NONE
    ) -> tuple[Reason, ...]:
        """Return what the world says against a recorded result.

        Args:
            result: the recorded result.
            step: the step as it is yielded now, whose files count; None for those of the record.
            rewritten: as in `reasons`.
        """
        report = self.reports.get(result.path)
        declared = None if step is None or not result.success else _declared(step)
        verdicts = () if report is None else report.verdicts
        skipped = [
            verdict
            for verdict in verdicts
            if verdict.evidence.role
            and ((declared is not None and _file(verdict) not in declared) or _is_rewritten(verdict, rewritten))
        ]
        found = () if report is None else evidence_reasons(report, skipped)
        if declared and (result.evidence is not None or step is None or not step.modifiers.is_at_most_once):
            recorded = {_file(verdict) for verdict in verdicts}
            found += tuple(
                Reason(_FILE_KINDS[role], f"{path}: the step {role} it, and has not recorded it")
                for role, path in declared
                if (role, path) not in recorded
            )
        if self.secrets.is_any:  # what was found in the world may be one
            found = tuple(attrs.evolve(reason, detail=self.secrets.text(reason.detail)) for reason in found)
        return found

    def _package_reasons(self, step: Step[Any], result: StepResult) -> tuple[Reason, ...]:
        attempts = [attempt for attempt in self.packages if attempt <= result.attempt]
        moved = self.packages[max(attempts, default=min(self.packages))]
        if not moved or not isinstance(step.action, PythonAction):
            return ()
        used = code_of(step.action.function).packages
        return tuple(Reason(ReasonKind.PACKAGES, f"{name} {moved[name]}") for name in sorted(used & moved.keys()))

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


def _are_other_arguments(reasons: tuple[Reason, ...]) -> bool:
    """Return whether the same code, under the same version tag, is called with other arguments."""
    return {reason.kind for reason in reasons} == {ReasonKind.ARGUMENTS}


def evidence_reasons(report: VerificationReport, skipped: Sequence[Verdict] = ()) -> tuple[Reason, ...]:
    """Return why a report does not let a result be reused; nothing where its claims hold.

    Claims that need not hold at a resume do not count, nor does a step without claims.

    Args:
        report: the answers to the claims of one step.
        skipped: those of its answers that do not count.
    """
    if report.verified or report.outcome == "no_evidence":
        return ()
    is_proved = report.outcome == "failed"
    found = [
        Reason(
            _FILE_KINDS.get(verdict.evidence.role, ReasonKind.EVIDENCE),
            "; ".join([verdict.error, *(each for each in verdict.details if each not in verdict.error)]),
            verdict.can_tell if verdict.evidence.role else is_proved,
        )
        for verdict in report.verdicts
        if verdict.error is not None and verdict.is_against and verdict not in skipped
    ]
    return tuple(found) or (() if skipped else (Reason(ReasonKind.EVIDENCE, report.reason, is_proved),))


# The files of `.reads()` and `.writes()`.

_FILE_KINDS = {"reads": ReasonKind.READS, "writes": ReasonKind.EVIDENCE}


def _declared(step: Step[Any]) -> list[tuple[str, str]] | None:
    """Return the files of a step as it is yielded now; None if its own functions cannot say."""
    try:
        return [(role, path) for role in _FILE_KINDS for path in declared_files(step, role)]
    except Exception:  # it fails again when the step runs, where the error belongs
        return None


def _file(verdict: Verdict) -> tuple[str, str]:
    return verdict.evidence.role, str(verdict.evidence.expected.get("path"))


def _is_rewritten(verdict: Verdict, rewritten: Mapping[str, str | None]) -> bool:
    """Return whether a step that runs again is assumed to write what was read."""
    claim = verdict.evidence
    if claim.role != "reads" or not rewritten:
        return False
    path = os.path.normpath(_file(verdict)[1])
    if path in rewritten:
        digest = rewritten[path]
        return digest is None or bool(digest == claim.expected.get("sha256", claim.expected.get("digest")))
    return any(each.startswith(f"{path}{os.sep}") or path.startswith(f"{each}{os.sep}") for each in rewritten)
