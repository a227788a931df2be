"""The options of a run. They are one value, so that inputs may have any other name."""

from __future__ import annotations

import inspect
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import attrs

from flowckpt import execution, maintenance
from flowckpt.core.dsl.modifiers import to_seconds
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.engine.rules import reasons as policies
from flowckpt.engine.rules.reasons import LIMITS, MAX_CRASHES
from flowckpt.errors import InputError, SettingError

if TYPE_CHECKING:
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.maintenance.retention import Retention
    from flowckpt.stores.base import StoreBase


E = TypeVar("E", bound=StrEnum)
F = TypeVar("F")

RETRIES_USED = "retries_used"
"""Key in the recorded limits: how many retries were made since the budget was set."""


def _option_error(name: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError(f"{name}={value!r:.80} {problem}", parameter=name, remedy=remedy)


def _check_limit(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        remedy = "Leave it out to use the default."
        raise _option_error(attribute.name, value, "is not a whole number of at least 0", remedy)


def _parse_choice(kind: type[E], name: str, value: Any) -> E | None:
    if value is None or value in tuple(kind):
        return None if value is None else kind(value)
    raise _option_error(name, value, f"is not one of {', '.join(map(repr, map(str, kind)))}", "Write one of them.")


class IfExists(StrEnum):
    """The action of a start if the store already has a run with its id."""

    FAIL = "fail"
    RESUME = "resume"
    RETURN = "return"

    @classmethod
    def parse(cls, value: object) -> IfExists:
        """Return the choice, or refuse it."""
        return _parse_choice(cls, "if_exists", value) or cls.FAIL


def _on_stale(value: object) -> policies.OnStale | None:
    return _parse_choice(policies.OnStale, "on_stale", value)


def _on_package_change(value: object) -> policies.OnStale | None:
    chosen = _parse_choice(_OnPackageChange, "on_package_change", value)
    return None if chosen is None else policies.OnStale(chosen)


class _OnPackageChange(StrEnum):
    RERUN = "rerun"
    REUSE = "reuse"


def _on_code_change(value: object) -> policies.OnStale | None:
    return _parse_choice(policies.OnStale, "on_code_change", value)


class _HowFilesAreChecked(StrEnum):
    HASH = "hash"
    STAT = "stat"


def _verify(value: object) -> str | None:
    return _parse_choice(_HowFilesAreChecked, "verify", value)


def _reuse(value: object) -> policies.ReuseMode | None:
    return _parse_choice(policies.ReuseMode, "reuse", value)


def _parse_stay(value: object) -> float | None:
    if value is None or value == math.inf:
        return None if value is None else math.inf
    if is_finite_number(value) and value >= 0:
        return float(value)
    remedy = "Write 600 for ten minutes, or float('inf') for as long as it takes."
    raise _option_error("stay", value, "is not a number of seconds, 0 or more", remedy)


def _check_paths(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, str):
        name = attribute.name
        raise _option_error(name, value, "is a text, not a list", f"Write {name}=[{value!r:.80}].")


def _check_mapping(example: str) -> Callable[[object, attrs.Attribute[Any], object], None]:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, Mapping):
            name = attribute.name
            raise _option_error(name, value, "is not a dictionary", f"Write {name}={example}.")

    return check


def _check_tags(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(type(each) is str for pair in value.items() for each in pair):
        name = attribute.name
        raise _option_error(name, value, "does not map text to text", f"Write {name}={{'team': 'data'}}.")


def check_functions(setting: str, functions: Iterable[F], kind: str) -> tuple[F, ...]:
    """Return functions as a tuple.

    Args:
        setting: the name of the argument.
        functions: the functions.
        kind: what they do, for the error.

    Raises:
        SettingError: one of them cannot be called.
    """
    value: object = functions
    if not isinstance(value, Iterable):
        message = f"{setting}={value!r:.80} ({type(value).__name__}) is not a list of functions"
        raise SettingError(message, setting=setting, remedy=f"Give a list of functions {kind}.")
    checked = tuple(functions)
    for each in checked:
        if not callable(each):
            message = f"{setting} has {each!r:.80} ({type(each).__name__}), which cannot be called"
            raise SettingError(message, setting=setting, remedy=f"Give functions {kind}.")
    return checked


def check_ports(verifier: object, clock: object) -> None:
    """Refuse a verifier or a clock, None aside, that lacks the methods of one.

    Raises:
        SettingError: it is a class, or another object.
    """
    for setting, value, method, remedy in (
        ("verifier", verifier, "verify_evidence_pack", "Give an EvidenceVerifier(…)."),
        ("clock", clock, "elapsed_ns", "Give an object with the methods now, elapsed_ns and sleep."),
    ):
        if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
            raise SettingError(f"{setting}={value!r:.80} is not a {setting}", setting=setting, remedy=remedy)


def check_options(options: object) -> None:
    """Refuse a value that is not `RunOptions`.

    Raises:
        InputError: the value is something else.
    """
    if options is not None and not isinstance(options, RunOptions):
        problem = f"({type(options).__name__}) are not RunOptions"
        raise _option_error("options", options, problem, "Write options=RunOptions(tags={'team': 'data'}).")


@lazy_frozen(eq=False, repr=False)
class TypedOutput(FieldEquality):
    """The output of a step given as text: it is converted once the annotation of the step's function is known.

    Attributes:
        text: the text.
        make: returns the output, given the annotation.
    """

    text: str
    make: Callable[[Any], Any]


def _find_maker(output: Any) -> Callable[[Any], Any] | None:
    if output is ...:
        return None
    return output.make if isinstance(output, TypedOutput) else lambda _: output


@lazy_frozen(kw_only=True, eq=False, repr=False)
class RunOptions(FieldEquality):
    """Options of a start, a resume or a plan.

    Attributes:
        tags: labels for listing runs, text to text; recorded at the start.
        target: how `flowckpt resume` finds the workflow: a mapping with `file` or `module`, `name` and `cwd`; derived
            from the function by default. Given to a resume, it replaces the recorded one.
        base_path: the directory from which relative paths in claims start; recorded. By default the current directory at
            the start, and the recorded one for a resume.
        every: take a checkpoint after this many steps without one; recorded at the start, and used by each resume. The
            engine's trigger takes precedence.
        interval: take a checkpoint after a step if the last one is this many seconds old; recorded likewise.
        steal: take the run over although its owner is alive.
        on_stale: what a resume does if evidence, arguments or a version tag changed: `rerun`, `reuse` or `fail`. By
            default, changed steps run again, and evidence that cannot be checked stops the resume.
        on_code_change: what a resume does if a step's function was edited: `rerun`, `reuse` or `fail` (the default).
        on_package_change: what a resume does if an installed package that a step's code uses has another version:
            `rerun` or `reuse` (the default), which only mentions it in the plan.
        reuse: `prefix` (the default): everything from the first stale step on runs again; `inputs`: later results are
            kept if their steps are called with the same arguments.
        verify: how files are checked: `hash` reads them, `stat` skips files that look untouched; by default as the
            engine's verifier does.
        from_step: run everything again from this recorded step on (path, or name for its first use).
        force: run again whatever would stop the resume, and whatever the workflow no longer yields as recorded.
        done: at-most-once steps in doubt whose effect happened, by path, with their outputs; `...` for an output that
            `.adopt()` makes, or None. Recorded.
        not_done: the paths of at-most-once steps in doubt whose effect did not happen: they run. Recorded.
        settled_by: the person who decided about `done` and `not_done`; recorded.
        comment: the reason for that decision; recorded.
        allow_network: hosts that network claims may reach, as `host:port`, if the engine has no verifier of its own.
        retry_budget: total retries for all steps and attempts of the run; recorded at the start. On resume, sets a new
            budget.
        max_crashes: crashes at the same step, with nothing new saved, after which a resume raises `CrashLoopError`; 0
            for no limit; recorded likewise; 5 by default.
        executors: executors by name, as descriptions: `process:8`, `dask://host:8786`; `default` takes all steps that
            name none. Recorded; a resume uses them again, except addresses, which must be given again.
        rolls_back: whether a run that fails or is cancelled undoes steps that have a `.rollback()`.
        stay: how many seconds in total the process stays while everything waits. By default it stays for waits that end
            within a minute; otherwise the run is suspended.
        no_cache: run steps with `.cache()` although the store has a result that they could take.
        if_attempt: resume only if this is the run's newest attempt; otherwise `RunMovedOnError`.
    """

    tags: Mapping[str, str] = attrs.field(factory=dict, validator=_check_tags)
    target: Mapping[str, str] | None = None
    base_path: str | None = None
    every: int | None = None
    interval: float | None = None
    steal: bool = False
    on_stale: policies.OnStale | None = attrs.field(default=None, converter=_on_stale)
    on_code_change: policies.OnStale | None = attrs.field(default=None, converter=_on_code_change)
    on_package_change: policies.OnStale | None = attrs.field(default=None, converter=_on_package_change)
    reuse: policies.ReuseMode | None = attrs.field(default=None, converter=_reuse)
    verify: str | None = attrs.field(default=None, converter=_verify)
    from_step: str | None = None
    force: bool = False
    done: Mapping[str, Any] = attrs.field(factory=dict, validator=_check_mapping("{'pay': ...}"))
    not_done: Sequence[str] = attrs.field(default=(), validator=_check_paths)
    settled_by: str = ""
    comment: str = ""
    allow_network: Sequence[str] = attrs.field(default=(), validator=_check_paths)
    retry_budget: int | None = attrs.field(default=None, validator=_check_limit)
    max_crashes: int | None = attrs.field(default=None, validator=_check_limit)
    executors: Mapping[str, str] = attrs.field(factory=dict, validator=_check_mapping("{'default': 'process:8'}"))
    rolls_back: bool = True
    stay: float | None = attrs.field(default=None, converter=_parse_stay)
    if_attempt: int | None = None
    no_cache: bool = False

    @property
    def policy(self) -> policies.ResumePolicy:
        """The policy for stale results."""
        return policies.ResumePolicy(
            on_stale=self.on_stale,
            on_code_change=self.on_code_change or policies.OnStale.FAIL,
            on_package_change=self.on_package_change or policies.OnStale.REUSE,
            reuse=self.reuse or policies.ReuseMode.PREFIX,
            from_path=self.from_step or "",
            is_forced=self.force,
            settled=self._decisions,
            takes_cached=not self.no_cache,
        )

    @property
    def _decisions(self) -> dict[str, policies.Settled]:
        """The decisions about steps in doubt, by path."""
        both = sorted({*self.done}.intersection(self.not_done))
        if both:
            raise InputError(
                f"step {both[0]!r} cannot be both done and not done",
                parameter=both[0],
                remedy="Give one of the two, --done or --not-done.",
            )
        by, comment = self.settled_by, self.comment
        settled = {path: policies.Settled(True, _find_maker(output), by, comment) for path, output in self.done.items()}
        return {**settled, **{path: policies.Settled(False, None, by, comment) for path in self.not_done}}

    def add_to_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a run with the options that also hold for later resumes.

        Args:
            metadata: the metadata to start from.
        """
        written = dict(metadata)
        if self.base_path is not None:
            written["base_path"] = self.base_path
        if asked := self.given_limits:
            written[LIMITS] = {**written.get(LIMITS, {}), **asked}
        if self.target is not None:  # the code is elsewhere now: record it for the next resume
            written["target"] = dict(self.target)
        if self.given_saving:
            written["saving"] = self.given_saving
        return written

    def make_checker(
        self, verifier: EvidenceVerifier | None, metadata: Mapping[str, Any]
    ) -> execution.claims.ClaimChecker:
        """Return the checker of a run's claims.

        Args:
            verifier: the verifier of the program, or None.
            metadata: the metadata of the run.
        """
        base_path = self.base_path or str(metadata.get("base_path", ""))
        return execution.claims.ClaimChecker(verifier, self.verify, base_path, self.allow_network)

    @property
    def given_saving(self) -> dict[str, float]:
        """The given settings of saving, in recorded form."""
        return {name: value for name in ("every", "interval") if (value := getattr(self, name)) is not None}

    @property
    def given_limits(self) -> dict[str, int]:
        """The given limits, in recorded form; a given budget starts unused."""
        limits = {name: value for name in ("retry_budget", "max_crashes") if (value := getattr(self, name)) is not None}
        return limits if self.retry_budget is None else {**limits, RETRIES_USED: 0}


@lazy_frozen(eq=False, repr=False)
class Saving:
    """How the runs of an engine are saved, apart from their explicit checkpoints, and their default limits.

    A limit is used if neither the options nor the record of a run have their own.

    Attributes:
        trigger: requests checkpoints, or None.
        continue_on_save_error: whether a run continues if the checkpoint after a step cannot be saved.
        retention: which checkpoints to keep; None to keep all.
        retry_budget: how many retries a run may make; None for no limit.
        max_crashes: how often a run may crash at the same step; 0 for no limit.
    """

    trigger: Trigger | None = None
    continue_on_save_error: bool = False
    retention: Retention | None = None
    retry_budget: int | None = attrs.field(default=None, validator=_check_limit)
    max_crashes: int = attrs.field(default=MAX_CRASHES, validator=_check_limit)

    @classmethod
    def create(
        cls, store: StoreBase, trigger: Trigger | None, on_save_error: str, retention: Retention | None, **limits: Any
    ) -> Saving:
        """Return the settings of an engine, or refuse them; see `WorkflowEngine`.

        Raises:
            SettingError: a value is invalid, or the store lacks a required ability.
        """
        if on_save_error not in ("fail", "continue"):
            raise SettingError(
                f"on_save_error={on_save_error!r:.80} is neither 'fail' nor 'continue'",
                setting="on_save_error",
                remedy="Write one of them.",
            )
        return cls(
            None if trigger is None else check_trigger(trigger),
            on_save_error == "continue",
            None if retention is None else maintenance.evict.check_retention_for(retention, store),
            **limits,
        )

    def trigger_of(self, recorded: Mapping[str, float]) -> Trigger | None:
        """Return the trigger of a run: the engine's, or the one that the run was started with.

        Args:
            recorded: `RunOptions.given_saving` of the start, or of now.

        Raises:
            SettingError: a number is out of its range.
        """
        if self.trigger is not None or not recorded:
            return self.trigger
        triggers: list[Trigger] = []
        if "every" in recorded:
            triggers.append(StepCountTrigger(recorded["every"]))  # type: ignore[arg-type]  # checked by the trigger
        if "interval" in recorded:
            triggers.append(TimeTrigger(recorded["interval"]))
        return triggers[0] if len(triggers) == 1 else CompositeTrigger(triggers)


# Triggers request checkpoints besides the explicit ones, depending on the progress of a run.
#
# A trigger keeps no state: it gets the progress since the last checkpoint. So one trigger can serve many runs, and
# decides in a resumed run exactly as in an uninterrupted one.


class Progress(NamedTuple):  # one is created after each step in 0.2 µs; an attrs class would take 0.6
    """The progress of a run, as a trigger sees it.

    Attributes:
        steps: steps that have ended since the last checkpoint.
        seconds: seconds since the last checkpoint, by a monotonic clock.
        results: results of the run in total.
        now: the time, aware and in UTC.
    """

    steps: int
    seconds: float
    results: int
    now: datetime


class Trigger(Protocol):
    """A rule that requests checkpoints."""

    def should_checkpoint(self, progress: Progress) -> bool:
        """Return whether to take a checkpoint now.

        Args:
            progress: the progress of the run.
        """
        ...


def _check_seconds(_: TimeTrigger, __: attrs.Attribute[float], value: float) -> None:
    if not is_finite_number(value) or value <= 0:
        raise SettingError(
            f"a TimeTrigger needs a number of seconds above 0, or a timedelta, not {value!r:.80}",
            setting="seconds",
            remedy="Write TimeTrigger(60), or TimeTrigger(timedelta(minutes=1)).",
        )


@lazy_frozen(eq=False, repr=False)
class TimeTrigger(FieldEquality):
    """Requests a checkpoint after a step when enough time has passed since the last checkpoint.

    Attributes:
        seconds: the time, above 0: seconds or a timedelta; three minutes by default.
    """

    seconds: float = attrs.field(default=180.0, converter=to_seconds, validator=_check_seconds)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Return whether enough time has passed since the last checkpoint."""
        return progress.seconds >= self.seconds


def _check_steps(_: StepCountTrigger, __: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or value < 1:
        raise SettingError(
            f"a StepCountTrigger needs a whole number of steps of at least 1, not {value!r:.80}",
            setting="steps",
            remedy="Write StepCountTrigger(10); 1 is a checkpoint after every step.",
        )


@lazy_frozen(eq=False, repr=False)
class StepCountTrigger(FieldEquality):
    """Requests a checkpoint when enough steps have ended since the last one.

    Attributes:
        steps: the number of steps, from 1.
    """

    steps: int = attrs.field(validator=_check_steps)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Return whether enough steps have ended since the last checkpoint."""
        return progress.steps >= self.steps


def _check_members(value: object) -> tuple[Trigger, ...]:
    members: tuple[Trigger, ...] = tuple(value) if isinstance(value, Iterable) else ()
    if not members:
        raise SettingError(
            f"a CompositeTrigger needs a list of at least one trigger, not {value!r:.80}",
            setting="triggers",
            remedy="Write CompositeTrigger([TimeTrigger(60), StepCountTrigger(100)]).",
        )
    return tuple(check_trigger(member) for member in members)


def _check_mode(_: CompositeTrigger, __: object, value: object) -> None:
    if value not in ("any", "all"):
        raise SettingError(
            f"{value!r:.80} is not a mode of a CompositeTrigger", setting="mode", remedy="Write 'any' or 'all'."
        )


@lazy_frozen(eq=False, repr=False)
class CompositeTrigger(FieldEquality):
    """Requests a checkpoint when any, or all, of several triggers do.

    Attributes:
        triggers: the triggers, at least one.
        mode: `any` or `all`.
    """

    triggers: tuple[Trigger, ...] = attrs.field(converter=_check_members)
    mode: str = attrs.field(default="any", validator=_check_mode)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Return whether any, or all, of the triggers request a checkpoint.

        In mode `any`, an error of one trigger is raised only if no other requests a checkpoint.
        """
        if self.mode == "all":
            return all(trigger.should_checkpoint(progress) for trigger in self.triggers)
        failure: Exception | None = None
        for trigger in self.triggers:
            try:
                if trigger.should_checkpoint(progress):
                    return True
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return False


def check_trigger(value: object) -> Trigger:
    """Return a trigger if it is valid.

    Args:
        value: the trigger.

    Raises:
        SettingError: it has no method `should_checkpoint`, or is a class instead of an instance.
    """
    method = getattr(value, "should_checkpoint", None)
    if isinstance(value, type) or not callable(method) or inspect.iscoroutinefunction(method):
        raise SettingError(
            f"{value!r:.80} is not a trigger",
            setting="trigger",
            remedy="Give a TimeTrigger(…), a StepCountTrigger(…), or an object with a method "
            "'should_checkpoint(progress)' that is not async and returns True or False.",
        )
    return value  # type: ignore[return-value]


def asks_for_checkpoint(
    trigger: Trigger, progress: Progress, log: logging.Logger, logged: set[str] | None = None
) -> bool:
    """Return whether a trigger requests a checkpoint; an invalid answer or an error is logged and means no.

    Args:
        trigger: the trigger.
        progress: the progress of the run.
        log: where to log errors.
        logged: messages already logged, which are not repeated; updated in place.
    """
    try:
        answer: object = trigger.should_checkpoint(progress)
    except Exception as error:
        _log_once(log, logged, _find_culprit(trigger, error), f"it raised {error!r}")
        return False
    if isinstance(answer, bool):
        return answer
    _log_once(log, logged, trigger, f"it returned {answer!r:.80}, not True or False")
    return False


def _find_culprit(trigger: Trigger, error: BaseException) -> Trigger:
    """Return the member of a composite that failed, according to the traceback; otherwise the trigger itself."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        candidate: Any = frame.f_locals.get("self")
        if callable(getattr(candidate, "should_checkpoint", None)):
            trigger = candidate
    return trigger


def _log_once(log: logging.Logger, logged: set[str] | None, trigger: Trigger, what: str) -> None:
    """Log a message once: a trigger is called after every step, and often fails in the same way."""
    text = f"no checkpoint is taken for {type(trigger).__name__}: {what}"
    if logged is None or text not in logged:
        log.warning("%s", text)
    if logged is not None:
        logged.add(text)
