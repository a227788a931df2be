"""Why a recorded result is no longer valid, and what a resume does then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.process import ProcessIdentity


class ReasonKind(StrEnum):
    """The kind of a change.

    Attributes:
        EVIDENCE: a claim does not hold, or cannot be checked.
        READS: a file that the step reads changed.
        PACKAGES: an installed package that its code uses has another version.
        ARGUMENTS: the step is called with other arguments.
        CODE: its function was edited.
        VERSION: its `.version()` tag differs.
        NONDETERMINISM: nothing but its arguments changed, so the workflow passes another value each time.
        FORCED: a rerun was requested.
        UPSTREAM: an earlier step runs again.
        FAILED: it failed, and that ended the run.
        HANDLED: a rerun would try a step again whose failure the workflow handled.
        UNDONE: it was undone when the run failed or was cancelled.
        UNDOING: it has to be undone.
        STARTED: it was started, and its end was never recorded.
        CACHED: its result is in the record of a step with an equal call.
    """

    EVIDENCE = "evidence"
    """A claim does not hold, or cannot be checked."""
    READS = "reads"
    """A file that the step reads has changed since the step read it."""
    PACKAGES = "packages"
    """An installed package that its code uses has another version; by default this is only reported."""
    ARGUMENTS = "arguments"
    """The step is called with other arguments."""
    CODE = "code"
    """Its function was edited."""
    VERSION = "version"
    """Its `.version()` tag differs."""
    NONDETERMINISM = "nondeterminism"
    """Only its arguments changed."""
    FORCED = "forced"
    """A rerun was requested with `--from`."""
    UPSTREAM = "upstream"
    """An earlier step runs again."""
    FAILED = "failed"
    """It failed last time, and that ended the run."""
    HANDLED = "handled"
    """A rerun from here on would retry a step whose failure the workflow handled."""
    UNDONE = "undone"
    """Its effect was undone when the run failed."""
    UNDOING = "undoing"
    """Undoing its effect has started and is not finished."""
    STARTED = "started"
    """It was started, and its end was never recorded."""
    CACHED = "cached"
    """`.cache()` takes the result of an equal call."""


@attrs.frozen(eq=False, repr=False)
class Reason(FieldEquality):
    """One reason why a step is not simply reused; `str()` of it is `kind: detail`.

    Attributes:
        kind: what changed.
        detail: the change, down to the leaf, in one sentence.
        is_proved: whether the change is certain; False for evidence that could not be checked.
    """

    kind: ReasonKind
    detail: str
    is_proved: bool = True

    @property
    def makes_stale(self) -> bool:
        """Whether the recorded result is stale, rather than a rerun requested."""
        return self.kind in _STALE

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"

    def to_document(self) -> dict[str, Any]:
        """Return the reason as plain JSON."""
        return {"kind": str(self.kind), "detail": self.detail}


_STALE = frozenset(
    {
        ReasonKind.EVIDENCE,
        ReasonKind.READS,
        ReasonKind.ARGUMENTS,
        ReasonKind.NONDETERMINISM,
        ReasonKind.CODE,
        ReasonKind.VERSION,
    }
)
NONDETERMINISM = Reason(
    ReasonKind.NONDETERMINISM,
    "the workflow's code and inputs are unchanged, so it passes a value that differs on every replay; use now(), uuid() or "
    "random(), or read a directory, a file or an environment variable in a step; or it passes an object that an earlier step "
    "changes in place, and a resume does not repeat that",
)


# What to do with a stale result: chosen per resume, decided by one function.


class OnStale(StrEnum):
    """The treatment of a stale result."""

    RERUN = "rerun"
    """Run the step again."""
    REUSE = "reuse"
    """Use the recorded result anyway."""
    FAIL = "fail"
    """Stop before any step runs."""


class ReuseMode(StrEnum):
    """How far a resume compares results after a stale one."""

    PREFIX = "prefix"
    """Everything from the first stale step on runs again."""
    INPUTS = "inputs"
    """After a stale step, a recorded result is reused if the step gets the same arguments, as in build tools."""


@lazy_frozen(eq=False, repr=False)
class Settled(FieldEquality):
    """A user's decision about an at-most-once step in doubt; it counts for one resume.

    Attributes:
        is_done: whether its effect happened.
        make: returns its output, given the annotation of its function; None to use `.adopt()`.
        by: the person.
        comment: the reason.
    """

    is_done: bool
    make: Callable[[Any], Any] | None = None
    by: str = ""
    comment: str = ""

    @property
    def sentence(self) -> str:
        """The decision, in a sentence."""
        because = f" ({self.comment})" if self.comment else ""
        return f"{self.by or 'a person'} decided that it was {'' if self.is_done else 'not '}done{because}"


@lazy_frozen(kw_only=True, eq=False, repr=False)
class ResumePolicy(FieldEquality):
    """The policy of a resume for stale results.

    Attributes:
        on_stale: what to do if evidence, arguments or the version tag have changed. By default, such a step runs again,
            and evidence that cannot be checked stops the resume.
        on_code_change: what to do if the function was edited.
        on_package_change: what to do if an installed package that its code uses has another version.
        reuse: which results after a stale one may be reused.
        from_path: the step from which everything runs again; empty for none.
        is_forced: whether to run again what would stop a resume: stale results, steps in doubt, and everything from the
            place where the workflow yields another step than the recorded one.
        runners: the processes of earlier owners that may still be running a step in doubt, by path.
        birth: the `birth` of the run, by which processes are found that still run its steps.
        settled: decisions about steps in doubt, by path.
        takes_cached: whether steps with `.cache()` may take results of other runs.
    """

    on_stale: OnStale | None = None
    on_code_change: OnStale = OnStale.FAIL
    on_package_change: OnStale = OnStale.REUSE
    reuse: ReuseMode = ReuseMode.PREFIX
    from_path: str = ""
    is_forced: bool = False
    runners: Mapping[str, Sequence[ProcessIdentity]] = attrs.field(factory=dict)
    birth: str = ""
    settled: Mapping[str, Settled] = attrs.field(factory=dict)
    takes_cached: bool = True

    @property
    def reruns_what_follows(self) -> bool:
        """Whether the user requested a rerun, of a step or of stale results, and thus of what follows them."""
        is_answer = OnStale.RERUN in (self.on_stale, self.on_code_change)
        return is_answer or self.is_forced or bool(self.from_path)

    def decide(self, reasons: Iterable[Reason], *, is_done: bool = False) -> OnStale:
        """Return what to do with a recorded result.

        A requested rerun always happens, whatever the other reasons. Otherwise each reason is answered separately, and
        the strictest answer wins: stop over rerun, rerun over reuse.

        Args:
            reasons: why the result is stale; without reasons, it is reused.
            is_done: whether a rerun repeats an effect that must not be repeated without the user's decision.
        """
        reasons = tuple(reasons)
        if any(reason.kind is ReasonKind.FORCED for reason in reasons):
            return OnStale.RERUN
        answers = {self._answer(each, is_done=is_done) for each in reasons if each.kind is not ReasonKind.HANDLED}
        if OnStale.FAIL in answers:
            return OnStale.RERUN if self.is_forced else OnStale.FAIL
        if OnStale.RERUN not in answers:
            return OnStale.REUSE
        is_handled = any(reason.kind is ReasonKind.HANDLED for reason in reasons)
        return OnStale.FAIL if is_handled and not self.reruns_what_follows else OnStale.RERUN

    def _answer(self, reason: Reason, *, is_done: bool) -> OnStale:
        if reason.kind is ReasonKind.CODE:
            return self.on_code_change
        if reason.kind is ReasonKind.PACKAGES:
            return self.on_package_change
        if not reason.makes_stale:
            return OnStale.RERUN
        if self.on_stale is not None:
            return self.on_stale
        if is_done and reason.kind is not ReasonKind.EVIDENCE:  # denied evidence means that the effect is gone
            return OnStale.FAIL
        # If a server does not answer, neither discard hours of work nor guess its answer.
        return OnStale.RERUN if reason.is_proved else OnStale.FAIL


# The limits of a run: their metadata keys and defaults.


LIMITS = "limits"
"""Metadata key: the requested limits."""
MAX_CRASHES = 5
"""How often a run may crash at one step before a resume refuses it, by default."""
