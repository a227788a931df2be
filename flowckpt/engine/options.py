"""What can be said about a run beside its inputs; one value, so that inputs may have any other name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from flowckpt.errors import InputError, SettingError
from flowckpt.fieldwise import Fieldwise
from flowckpt.finite import is_finite_number
from flowckpt.lazy import LazyModule
from flowckpt.plan.limits import LIMITS, MAX_DEATHS
from flowckpt.stores.checked import check_store

if TYPE_CHECKING:
    from flowckpt import triggers
    from flowckpt.plan import policy as policies
    from flowckpt.retention import evicting
    from flowckpt.retention.rule import Retention
    from flowckpt.stores.base import CheckpointStore
else:  # few engines are told what to keep
    policies = LazyModule("flowckpt.plan.policy")
    triggers = LazyModule("flowckpt.triggers")
    evicting = LazyModule("flowckpt.retention.evicting")

E = TypeVar("E", bound=StrEnum)

RETRIES_USED = "retries_used"
"""Among the recorded limits: how many retries were made since the budget was given."""


def _limit(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(
            f"{attribute.name}={value!r:.80} is no whole number from 0 on",
            parameter=attribute.name,
            remedy="Leave it out for what holds without it.",
        )


def _choice(kind: type[E], name: str, value: Any) -> E | None:
    if value is None or value in tuple(kind):
        return None if value is None else kind(value)
    raise InputError(
        f"{name}={value!r:.80} is none of {', '.join(map(repr, map(str, kind)))}",
        parameter=name,
        remedy="Write one of them.",
    )


def _on_stale(value: object) -> policies.OnStale | None:
    return _choice(policies.OnStale, "on_stale", value)


def _on_code_change(value: object) -> policies.OnStale | None:
    return _choice(policies.OnStale, "on_code_change", value)


class _HowFilesAreChecked(StrEnum):
    HASH = "hash"
    STAT = "stat"


def _verify(value: object) -> str | None:
    return _choice(_HowFilesAreChecked, "verify", value)


def _reuse(value: object) -> policies.ReuseMode | None:
    return _choice(policies.ReuseMode, "reuse", value)


def _stay(value: object) -> float | None:
    if value is None or value == math.inf:
        return None if value is None else math.inf
    if is_finite_number(value) and value >= 0:
        return float(value)
    raise InputError(
        f"stay={value!r:.80} is no number of seconds, 0 or more",
        parameter="stay",
        remedy="Write 600 for ten minutes, or float('inf') for as long as it takes.",
    )


class OnStop(StrEnum):
    """What a signal makes of a run."""

    CANCEL = "cancel"
    SUSPEND = "suspend"


def _on_stop(value: object) -> OnStop:
    return _choice(OnStop, "on_stop", value) or OnStop.CANCEL


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunOptions(Fieldwise):
    """Options of starting or resuming a run.

    Attributes:
        tags: labels by which runs are listed; recorded at the start.
        target: how the workflow is found again by `flowckpt resume`; worked out from the function where not given.
        every: take a checkpoint after that many steps without one; recorded at the start, and kept by each resume.
        interval: take one after a step when the last is that many seconds old; likewise.
        steal: take the run over although its owner's process still holds it.
        on_stale: what a resume does where evidence, arguments or a version tag have moved: `rerun`, `reuse` or `fail`.
            Not given, what has moved is run again, and what cannot be checked stops the resume.
        on_code_change: what it does where a step's function was edited; not given, it stops.
        reuse: `prefix`: everything from the first stale step on is run again; `inputs`: behind it, results are reused
            where the steps are called with the same arguments.
        verify: how files are checked: `hash` reads them, `stat` skips those that look untouched; not given, as the
            engine's verifier does.
        from_step: the step (path, or name) from which on everything is run again.
        force: run again whatever the resume would stop at.
        allow_network: hosts that network claims may reach, as `host:port`, where the engine was given no verifier.
        retry_budget: how many retries the run may make, all its steps and attempts together; recorded at the start. Given
            to a resume, it is a fresh budget from there. Any number where neither it nor the engine says so.
        max_deaths: how often the run may die at the same step, with nothing new saved between, before a resume refuses
            it (`RunParkedError`); 0 for no limit. Recorded likewise; 5 where nobody says so.
        executors: where steps can run besides here, by name, as descriptions: `process:8`, `dask://host:8786`; the one
            named `default` is that of all steps that name none and may run there. Recorded at the start; a resume uses
            them again, but for those that name another machine, which it wants to be told again.
        rolls_back: whether a run that fails or is cancelled undoes what its steps did, where they say how.
        stay: for how many seconds in all the process stays when everything waits; not given, it stays for what ends by
            itself within a minute, and the run is suspended otherwise.
        if_attempt: resume only if this is the run's newest attempt: nobody else has gone on with it meanwhile.
        on_stop: what a signal makes of the run: `cancel` ends it as cancelled, and undoes; `suspend` saves it as suspended
            and due at once, with nothing undone, so that `flowckpt recover` goes on with it.
    """

    tags: Mapping[str, str] = attrs.field(factory=dict)
    target: Mapping[str, str] | None = None
    every: int | None = None
    interval: float | None = None
    steal: bool = False
    on_stale: policies.OnStale | None = attrs.field(default=None, converter=_on_stale)
    on_code_change: policies.OnStale | None = attrs.field(default=None, converter=_on_code_change)
    reuse: policies.ReuseMode | None = attrs.field(default=None, converter=_reuse)
    verify: str | None = attrs.field(default=None, converter=_verify)
    from_step: str | None = None
    force: bool = False
    allow_network: Sequence[str] = ()
    retry_budget: int | None = attrs.field(default=None, validator=_limit)
    max_deaths: int | None = attrs.field(default=None, validator=_limit)
    executors: Mapping[str, str] = attrs.field(factory=dict)
    rolls_back: bool = True
    stay: float | None = attrs.field(default=None, converter=_stay)
    if_attempt: int | None = None
    on_stop: OnStop = attrs.field(default=OnStop.CANCEL, converter=_on_stop)

    @property
    def policy(self) -> policies.ResumePolicy:
        """What to do with stale results."""
        return policies.ResumePolicy(
            on_stale=self.on_stale,
            on_code_change=self.on_code_change or policies.OnStale.FAIL,
            reuse=self.reuse or policies.ReuseMode.PREFIX,
            from_path=self.from_step or "",
            is_forced=self.force,
        )

    def written_to(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a run with what was asked for of it now, and holds for the next resume, too.

        Args:
            metadata: the metadata that it goes on from.
        """
        written = dict(metadata)
        if asked := self.asked_limits:
            written[LIMITS] = {**written.get(LIMITS, {}), **asked}
        if self.target is not None:  # the code has moved: the next resume finds it by itself
            written["target"] = dict(self.target)
        if self.asked_saving:
            written["saving"] = self.asked_saving
        return written

    @property
    def asked_saving(self) -> dict[str, float]:
        """What was asked for of saving, as it is recorded."""
        return {name: value for name in ("every", "interval") if (value := getattr(self, name)) is not None}

    @property
    def asked_limits(self) -> dict[str, int]:
        """What was asked for of limits, as it is recorded: a budget that is given is a fresh one."""
        asked = {name: value for name in ("retry_budget", "max_deaths") if (value := getattr(self, name)) is not None}
        return asked if self.retry_budget is None else {**asked, RETRIES_USED: 0}


@attrs.frozen(eq=False, repr=False)
class Limits:
    """Limits of the runs of an engine, where neither a run nor its record has its own.

    Attributes:
        retry_budget: how many retries a run may make; None for any number.
        max_deaths: how often a run may die at the same step; 0 for no limit.
    """

    retry_budget: int | None = attrs.field(default=None, validator=_limit)
    max_deaths: int = attrs.field(default=MAX_DEATHS, validator=_limit)


@attrs.frozen(eq=False, repr=False)
class Saving:
    """How the runs of an engine are saved besides their explicit checkpoints.

    Attributes:
        trigger: asks for checkpoints, or None.
        goes_on_unsaved: whether a run goes on when the checkpoint behind a step cannot be saved.
        retention: which checkpoints stay, or None where all do.
        limits: what its runs may do.
    """

    trigger: triggers.Trigger | None = None
    goes_on_unsaved: bool = False
    retention: Retention | None = None
    limits: Limits = attrs.field(factory=Limits)

    @classmethod
    def checked(
        cls,
        trigger: triggers.Trigger | None,
        on_save_error: str,
        retention: Retention | None,
        store: CheckpointStore,
        limits: Limits,
    ) -> Saving:
        """Return what an engine was told, or refuse it; see `WorkflowEngine`.

        Raises:
            SettingError: a value is none of those that can be, or the store cannot do what is asked for.
        """
        if on_save_error not in ("fail", "continue"):
            raise SettingError(
                f"on_save_error={on_save_error!r:.80} is neither 'fail' nor 'continue'",
                setting="on_save_error",
                remedy="Write one of them.",
            )
        check_store(store, "checkpoint_store")
        return cls(
            None if trigger is None else triggers.checked_trigger(trigger),
            on_save_error == "continue",
            None if retention is None else evicting.checked_for(retention, store),
            limits,
        )

    def trigger_of(self, recorded: Mapping[str, float]) -> triggers.Trigger | None:
        """Return the trigger of a run: the engine's, or what the run was started with.

        Args:
            recorded: what `RunOptions.asked_saving` said at the start, or says now.

        Raises:
            SettingError: a number is out of its range.
        """
        if self.trigger is not None or not recorded:
            return self.trigger
        asked: list[triggers.Trigger] = []
        if "every" in recorded:
            asked.append(triggers.StepCountTrigger(recorded["every"]))  # type: ignore[arg-type]  # checked by the trigger
        if "interval" in recorded:
            asked.append(triggers.TimeTrigger(recorded["interval"]))
        return asked[0] if len(asked) == 1 else triggers.CompositeTrigger(asked)
