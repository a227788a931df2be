"""Decide whether a recorded result is still valid, and what to do if it is not.

First by identity: whether the step is the one that made the result or saved the state (same code, arguments, version
tag). Replay compares the step's place, its action and the name of its function: if those differ, it is another step.
Then by evidence: whether the claims of the result still hold.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt import execution
from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.results import arguments_format, origin_fields
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.modifiers import list_declared_files
from flowckpt.core.dsl.step import Action, PythonAction
from flowckpt.core.identity.call import (
    CallIdentity,
    FunctionInfo,
    argument_differences,
    digest_arguments,
    digest_positional,
    format_arguments,
    function_info,
    identify,
)
from flowckpt.core.identity.fingerprint import code_of
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.identity.values import NONE, UNKNOWN, code_part, is_held, is_incomplete, value_part
from flowckpt.core.records import PartialState, StepResult
from flowckpt.core.system.declared import type_name
from flowckpt.engine.rules import in_doubt as in_doubts
from flowckpt.engine.rules.paths import is_within, make_handled_search
from flowckpt.engine.rules.reasons import NONDETERMINISM, OnStale, Reason, ReasonKind, ResumePolicy, ReuseMode
from flowckpt.errors import ApprovalRejectedError, DecodingError, EncodingError, StepTimeoutError
from flowckpt.execution.runner import restore_value

if TYPE_CHECKING:
    from flowckpt.core.codec import Json
    from flowckpt.evidence.report import Verdict, VerificationReport


def identity_reasons(
    step: Step[Any], result: StepResult | PartialState, secrets: KnownSecrets = NONE
) -> tuple[Reason, ...]:
    """Return why a recorded result does not belong to this call; nothing if it does.

    Args:
        step: the step as it is yielded now.
        result: the recorded result or saved state of its path.
        secrets: the secrets of the run, which are neither recorded nor shown.
    """
    action = step.action
    call = identify(action, secrets, step.modifiers.version)
    if (
        call.fingerprint == result.fingerprint
        and call.version == result.version
        and repr(call.arguments) == repr(result.arguments)  # as values, 1 == 1.0 == True
    ):
        return ()  # the usual case
    return tuple(_compare_calls(action, call, result, secrets))


def moved_reasons(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return how the call differs from the recorded one, apart from its code."""
    return tuple(each for each in identity_reasons(step, result, secrets) if each.kind is not ReasonKind.CODE)


def find_plain_match(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> FunctionInfo | None:
    """Return the facts about a step's function, if a quick comparison shows that a result belongs to the same call.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
        secrets: the secrets of the run.
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
        present = digest_arguments(action.function, args, action.kwargs, secrets)
        return info if repr(present) == repr(recorded) else None
    if not len(args) == len(recorded) <= len(names):
        return None
    for name, value in zip(names, args, strict=False):
        then = recorded.get(name)
        if type(value) is not int or type(then) is not int or value != then:  # 0.7 µs of numbers, and 2 of others
            return info if repr(digest_positional(names, args, secrets)) == repr(recorded) else None
    return info


PlainCall: TypeAlias = tuple[Any, int, bytes, FunctionInfo | None]
"""A function, the number of its arguments, the format of their bytes if they are integers, and the facts about the
function (None if the results were made by other code)."""


def plain_call(action: PythonAction, origin: bytes) -> PlainCall:
    """Return the facts that the fast path needs to compare a call with plain results of one origin."""
    function, count, info, form = action.function, len(action.args), function_info(action), b""
    if info is not None:
        made = origin_fields(origin)
        form = arguments_format(info.parameters[:count])
        if (made["function"], made["fingerprint"]) != (info.name, info.fingerprint) or count > len(info.parameters):
            info = None
    return function, count, form, info


def incomparable_reasons(step: Step[Any], result: StepResult, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return the arguments that cannot be compared with the recorded ones: a model, a connection, a plain object.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
        secrets: the secrets of the run.
    """
    arguments = identify(step.action, secrets).arguments
    names = [name for name in arguments if any(map(is_incomplete, (arguments[name], result.arguments.get(name))))]
    return tuple(
        Reason(ReasonKind.ARGUMENTS, f"{name}: cannot be compared, and an earlier step runs again") for name in names
    )


def _compare_calls(
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
        shown = format_arguments(action.function, action.args, action.kwargs, secrets)
    is_known = not reasons or reasons[-1].kind is not ReasonKind.CODE
    reasons += [
        Reason(ReasonKind.CODE, _describe_code(name, is_held=is_held(form)))
        for name, form in call.arguments.items()
        if _is_edited(result.arguments.get(name), form, counts_held_code=is_known)
    ]
    moved = argument_differences(result.arguments, call.arguments, shown)
    reasons += [Reason(ReasonKind.ARGUMENTS, line) for line in moved]
    return reasons


def _is_edited(old: Json, new: Json, *, counts_held_code: bool) -> bool:
    """Return whether the code in an argument was edited. Another value has other code without any edit.

    Args:
        old: the recorded form.
        new: the present form.
        counts_held_code: whether an edit of code that the step's function holds counts; an edit of the function includes it.
    """
    was, now = value_part(old), value_part(new)
    code, before = (code_part(each, with_held_code=counts_held_code) for each in (new, old))
    return code != "" and before not in ("", code) and (was == now or UNKNOWN in (was, now))


def _describe_code(name: str, *, is_held: bool) -> str:
    if is_held:
        return f"{name}, which the step's function holds, has changed"
    return f"{name}: its code, or code of the project that it uses, was edited"


def _form(fingerprint: str) -> str:
    """Return the number of the normal form: digests of different forms cannot be compared."""
    return fingerprint.partition(":")[0]


# The state that an interrupted step saved.


CONTINUES = Reason(ReasonKind.STARTED, "it continues from its saved state")
"""The reason in a plan for a step whose saved state is still valid."""


def partial_reasons(step: Step[Any], partial: PartialState, secrets: KnownSecrets = NONE) -> tuple[Reason, ...]:
    """Return what has changed since a step saved its state; nothing for the same step with the same arguments.

    Args:
        step: the step as it is yielded now.
        partial: the state saved under its path.
        secrets: the secrets of the run, which are neither recorded nor shown.
    """
    now, was = (name.rpartition(":")[2] for name in (step.action.function_name, partial.function))
    if now != was:
        return (Reason(ReasonKind.CODE, f"its saved state was saved by {was}(), but the step now calls {now}()"),)
    return tuple(
        Reason(each.kind, f"since it saved its state: {each.detail}")
        for each in identity_reasons(step, partial, secrets)
    )


def keep_partial(partial: Mapping[str, PartialState], policy: ResumePolicy) -> dict[str, PartialState]:
    """Return the states that a resume starts with: all except those of steps that the user wants to run again.

    Args:
        partial: the states of the newest checkpoint.
        policy: the policy of the resume.
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
    """Compares recorded results with the steps as they are yielded now, and with the evidence.

    Attributes:
        policy: what to do with a stale result.
        reports: the verdicts on the claims of recorded results, by path; renewed after steps have run.
        secrets: the secrets of the run, which are never recorded.
        newest: the attempt that saved last; 0 for none.
        is_same_code: returns whether the workflow's code is that of the newest attempt.
        history: the recorded results, which may include handled failures.
        packages: installed packages with another version than recorded, by the attempt that used them; empty if not
            requested.
        saved: the verdicts that a checkpoint of this attempt already holds.
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
    def handled_after(self) -> Callable[[str], str]:
        """Return a function from a step to a handled failure that its rerun would try again; empty for none."""
        history = () if self.policy.reruns_what_follows else self.history
        return make_handled_search(history, drops_what_follows=self.policy.reuse is ReuseMode.PREFIX)

    def reasons(
        self,
        step: Step[Any],
        result: StepResult,
        *,
        is_after_rerun: bool = False,
        is_first: bool = False,
        rewritten: Mapping[str, str | None] | None = None,
        more: tuple[Reason, ...] = (),
    ) -> tuple[Reason, ...]:
        """Return why a recorded result would not simply be reused.

        Args:
            step: the step as it is yielded now.
            result: the recorded result of its path.
            is_after_rerun: whether an earlier step runs again, so that arguments which cannot be compared may have
                changed.
            rewritten: for a plan: the digests of the files that the rerun steps wrote before, by path; the steps are
                assumed to write the same again. None for a file of a step without a result: any content may be what it
                writes.
            is_first: whether every earlier step was restored, so that none returned a new value.
            more: further reasons against it.
        """
        reasons = identity_reasons(step, result, self.secrets)
        if reasons and is_first and result.attempt == self.newest and _are_other_arguments(reasons):
            reasons += (NONDETERMINISM,) * self.is_same_code()
        reasons += more
        if (detail := _find_other_end(step, result)) != "":
            reasons += (Reason(ReasonKind.ARGUMENTS, detail),)
        if is_after_rerun:
            reasons += incomparable_reasons(step, result, self.secrets)
        if self.reports or step.modifiers.files is not None:
            reasons += self.evidence_reasons(result, step, rewritten or _NONE)
        if self.packages:
            reasons += self._package_reasons(step, result)
        if self.is_forced(result.path):
            what = "everything from this step on" if self.policy.reuse is ReuseMode.PREFIX else "this step"
            reasons += (Reason(ReasonKind.FORCED, f"{what} runs again"),)
        if any(each.makes_stale for each in reasons) and (handled := self.handled_after(result.path)):
            detail = (
                f"a rerun would try {handled} again, whose failure the workflow handled; later steps are not undone"
            )
            reasons += (Reason(ReasonKind.HANDLED, detail),)
        return reasons

    def evidence_reasons(
        self, result: StepResult, step: Step[Any] | None = None, rewritten: Mapping[str, str | None] = _NONE
    ) -> tuple[Reason, ...]:
        """Return why a recorded result is stale according to its evidence.

        Args:
            result: the recorded result.
            step: the step as it is yielded now, whose declared files are checked; None to check the recorded files.
            rewritten: as in `reasons`.
        """
        report = self.reports.get(result.path)
        declared = None if step is None or not result.success else _list_declared(step)
        verdicts = () if report is None else report.verdicts
        skipped = [
            verdict
            for verdict in verdicts
            if verdict.evidence.role
            and ((declared is not None and _file_key(verdict) not in declared) or _is_rewritten(verdict, rewritten))
        ]
        reasons = () if report is None else evidence_reasons(report, skipped)
        if declared and (result.evidence is not None or step is None or not step.modifiers.is_at_most_once):
            recorded = {_file_key(verdict) for verdict in verdicts}
            reasons += tuple(
                Reason(_FILE_KINDS[role], f"{path}: the step {role} it, but did not record it")
                for role, path in declared
                if (role, path) not in recorded
            )
        if self.secrets.is_any:  # a found value may be a secret
            reasons = tuple(attrs.evolve(reason, detail=self.secrets.redact(reason.detail)) for reason in reasons)
        return reasons

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
        """Return whether a rerun repeats an effect that must not be repeated without the user's decision."""
        return in_doubts.repeats_effect(step, result)

    def proves_done(self, step: Step[Any], result: StepResult) -> bool:
        """Return whether a step that must not be done twice was done by the same call: an edit does not undo it.

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
        """Return whether the user requested a rerun of a step, or of a step that contains it."""
        wanted = self.policy.from_path
        return bool(wanted) and (path == wanted or path.startswith(f"{wanted}/"))


def _find_other_end(step: Step[Any], result: StepResult) -> str:
    """Return why a call would end in another way now, by an argument that does not identify it; empty if it would not."""
    action: Any = step.action
    try:
        if action.is_command and result.success:
            is_cut = execution.command.is_cut_short(action, restore_value(step, result))
            return "max_output: the recorded output was cut at a lower limit" if is_cut else ""
        if action.step_type == "wait" and not result.signal and "edited" not in result.marks:
            return _find_other_default(action, result)
        if action.step_type == "approval" and "edited" not in result.marks:
            return _find_other_rejection(step, result)
    except (DecodingError, EncodingError):  # that it does not fit is another reason
        pass
    return ""


def _find_other_default(action: Any, result: StepResult) -> str:
    """Return how the default of a wait differs from that with which it ended at its deadline; empty if it does not."""
    if not result.success:
        is_late = result.error is not None and result.error.type == type_name(StepTimeoutError)
        return "default: there was none when the time was over" if is_late and action.has_default else ""
    if not action.has_default:
        return "default: there is none any more"
    before, now = plain_tree(result.held_output, result.path), codec.encode(action.default, action.output_type)
    return "" if canonical(now) == canonical(before) else "default: changed"


def _find_other_rejection(step: Step[Any], result: StepResult) -> str:
    """Return how a rejection would end the approval now; empty if as recorded, or if it was not rejected."""
    action: Any = step.action
    if not result.success:
        is_rejected = result.error is not None and result.error.type == type_name(ApprovalRejectedError)
        return "on_rejection: a rejection is returned now" if is_rejected and action.returns_rejection else ""
    is_returned = not (action.returns_rejection or restore_value(step, result).approved)
    return "on_rejection: a rejection fails the step now" if is_returned else ""


def _are_other_arguments(reasons: tuple[Reason, ...]) -> bool:
    """Return whether only the arguments differ, and not the code or the version tag."""
    return {reason.kind for reason in reasons} == {ReasonKind.ARGUMENTS}


def evidence_reasons(report: VerificationReport, skipped: Sequence[Verdict] = ()) -> tuple[Reason, ...]:
    """Return why a report prevents the reuse of a result; nothing if the claims hold.

    Claims that need not hold at a resume do not count; a step without claims has no reasons.

    Args:
        report: the verdicts on the claims of one step.
        skipped: the verdicts that do not count.
    """
    if report.verified or report.outcome == "no_evidence":
        return ()
    is_proved = report.outcome == "failed"
    reasons = [
        Reason(
            _FILE_KINDS.get(verdict.evidence.role, ReasonKind.EVIDENCE),
            "; ".join([verdict.error, *(each for each in verdict.details if each not in verdict.error)]),
            verdict.can_tell if verdict.evidence.role else is_proved,
        )
        for verdict in report.verdicts
        if verdict.error is not None and verdict.is_against and verdict not in skipped
    ]
    return tuple(reasons) or (() if skipped else (Reason(ReasonKind.EVIDENCE, report.reason, is_proved),))


# The files of `.reads()` and `.writes()`.

_FILE_KINDS = {"reads": ReasonKind.READS, "writes": ReasonKind.EVIDENCE}


def _list_declared(step: Step[Any]) -> list[tuple[str, str]] | None:
    """Return the files of a step as it is yielded now; None if the step's own functions fail."""
    try:
        return [(role, path) for role in _FILE_KINDS for path in list_declared_files(step, role)]
    except Exception:  # it fails again when the step runs, and is reported there
        return None


def _file_key(verdict: Verdict) -> tuple[str, str]:
    return verdict.evidence.role, str(verdict.evidence.expected.get("path"))


def _is_rewritten(verdict: Verdict, rewritten: Mapping[str, str | None]) -> bool:
    """Return whether a rerun step is assumed to write the file that was read."""
    claim = verdict.evidence
    if claim.role != "reads" or not rewritten:
        return False
    path = os.path.normpath(_file_key(verdict)[1])
    if path in rewritten:
        digest = rewritten[path]
        return digest is None or bool(digest == claim.expected.get("sha256", claim.expected.get("digest")))
    return any(each.startswith(f"{path}{os.sep}") or path.startswith(f"{each}{os.sep}") for each in rewritten)
