"""The part of a step that is the same with and without an action: its name and its modifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Self, TypeAlias

import attrs

from flowckpt.core.dsl import modifiers as checked
from flowckpt.core.dsl.checks import check_name, of_one_argument, of_output_and_arguments
from flowckpt.core.dsl.modifiers import (
    Modifiers,
    checked_timeout,
    checked_together,
    refuse_needless_ephemeral,
)
from flowckpt.core.system.attrs_base import FieldEquality

AnyPath: TypeAlias = str | PathLike[str]


@attrs.frozen(eq=False, repr=False)
class StepBase(FieldEquality):
    """A step before and after it has its action: a name and modifiers."""

    name: str
    modifiers: Modifiers

    def __repr__(self) -> str:
        return f"<step {self.name!r} without an action>"

    def _with(self, modifiers: Modifiers) -> Self:
        return attrs.evolve(self, modifiers=modifiers)

    def _refuse_twice(self, modifier: str, was_given: bool) -> None:
        if was_given:
            raise checked.given_twice(self.name, modifier)

    def checkpoint(self, id: str | None = None) -> Self:  # noqa: A002 - the keyword is part of the language
        """Modifier: take a checkpoint after the step succeeded.

        Args:
            id: the checkpoint's id; the step's path by default.

        Raises:
            StepDefinitionError: it was given before, the id is blank, or the step is ephemeral.
        """
        modifiers = self.modifiers
        self._refuse_twice("checkpoint", modifiers.has_checkpoint)
        if id is not None:
            check_name(id, "checkpoint id")
        return self._with(checked_together(self.name, attrs.evolve(modifiers, has_checkpoint=True, checkpoint_id=id)))

    def retry(
        self,
        attempts: int | None,
        backoff: float | timedelta = 0.0,
        max_delay: float | timedelta | None = None,
        jitter: float = 0.0,
        on: checked.Worth | tuple[checked.Worth, ...] = (Exception,),
        deadline: float | timedelta | None = None,
        factor: float = 2.0,
    ) -> Self:
        """Modifier: try the step again when it fails.

        An output that cannot be recorded is not tried again. An error that says how long to wait, by an attribute
        `retry_after` or an HTTP header `Retry-After` of its response, is followed by a wait of at least that time. A wait
        of more than a minute, or longer than `RunOptions(stay=…)`, suspends the run; a resume continues with the next try.

        Args:
            attempts: the number of tries, including the first; a whole number from 1, or None for any number.
            backoff: seconds or a `timedelta` before the second try; each further wait is `factor` times as long.
            max_delay: the longest wait by `backoff`, in seconds or as a `timedelta`; a minute by default, or `backoff` if
                that is longer.
            jitter: fraction from 0 to 1 by which a wait varies at random.
            on: which errors to retry: an exception class, a function that gets the exception and returns a bool, or a
                tuple of these. A function that raises or returns anything else means no.
            deadline: no new try starts later than this (seconds or a `timedelta`) after the first; waits end by then. A running try
                is not stopped; see `.timeout()`.
            factor: how many times longer each wait is than the one before; 1 waits equally long each time.

        Raises:
            StepDefinitionError: an argument is out of its range, or `.retry()` was given before.
        """
        self._refuse_twice("retry", self.modifiers.retry is not None)
        policy = checked.retry_policy(self.name, attempts, backoff, max_delay, jitter, on, deadline, factor)
        return self._with(attrs.evolve(self.modifiers, retry=policy))

    def timeout(self, seconds: float | timedelta) -> Self:
        """Modifier: limit the time of each try; a longer try fails with `StepTimeoutError`.

        A sync function with a timeout runs on its own thread, which is abandoned at the timeout.

        Args:
            seconds: the limit in seconds or as a `timedelta`, above 0.

        Raises:
            StepDefinitionError: the number is not above 0, or `.timeout()` was given before.
        """
        self._refuse_twice("timeout", self.modifiers.timeout_seconds is not None)
        return self._with(attrs.evolve(self.modifiers, timeout_seconds=checked_timeout(self.name, seconds)))

    def ephemeral(self) -> Self:
        """Modifier: never record the step, and run it at each replay: for a model, a connection, an open file.

        Raises:
            StepDefinitionError: it was given before, or with a modifier that needs a record.
        """
        if self.modifiers.is_secret:
            refuse_needless_ephemeral(self.name)
        self._refuse_twice("ephemeral", self.modifiers.is_ephemeral)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_ephemeral=True)))

    def evidence(self, *claims: Any, require_all: bool = True, min_verified: int | None = None) -> Self:
        """Modifier: claim what is true of the outside world once the step is done.

        The claims are checked after each try, before anything is saved; a false claim fails the try with
        `EvidenceNotVerifiedError`. They are checked again before a resume reuses the result, except `.transient()`
        claims.

        Args:
            *claims: claims of `flowckpt.evidence`, functions that get the step's result and return a claim or a list of
                claims, or a single `EvidencePack`.
            require_all: whether every claim must hold; otherwise at least one.
            min_verified: how many must hold, from 1; overrides `require_all`.

        Raises:
            StepDefinitionError: an argument is invalid, or `.evidence()` was given before.
        """
        self._refuse_twice("evidence", self.modifiers.evidence is not None)
        claimed = checked.claimed_evidence(self.name, claims, require_all, min_verified)
        return self._with(attrs.evolve(self.modifiers, evidence=claimed))

    def reads(self, *paths: AnyPath | Callable[..., Any]) -> Self:
        """Modifier: name the files and directories that the step reads.

        Their content is recorded before each try, and compared before a resume reuses the result: if one changed, the
        step runs again. A missing file fails the step before its function is called; so does a file that changes while
        the step runs, after it.

        Args:
            *paths: paths, relative to the directory of the run; or functions that get the arguments of the step's
                function, and return a path or a list of paths.

        Raises:
            StepDefinitionError: an argument is invalid, the step is ephemeral, or `.reads()` was given before.
        """
        return self._with_files("reads", paths)

    def writes(self, *paths: AnyPath | Callable[..., Any]) -> Self:
        """Modifier: name the files and directories that the step writes.

        Each must exist when the step ends. Its content is recorded with the step, and compared before a resume reuses
        the result: if a file changed or is gone, the step runs again. No two steps of a run may write the same file, and
        none may write a file that an earlier step read.

        Args:
            *paths: paths, relative to the directory of the run; or functions that get the arguments of the step's
                function, and return a path or a list of paths.

        Raises:
            StepDefinitionError: an argument is invalid, the step is ephemeral, or `.writes()` was given before.
        """
        return self._with_files("writes", paths)

    def _with_files(self, role: str, paths: tuple[Any, ...]) -> Self:
        files = self.modifiers.files
        self._refuse_twice(role, files is not None and bool(getattr(files, role)))
        made = attrs.evolve(self.modifiers, files=checked.step_files(self.name, role, paths, files))
        return self._with(checked_together(self.name, made))

    def at_most_once(self) -> Self:
        """Modifier: never repeat the step on a guess: for a payment, a mail, anything that must not happen twice.

        A durable marker is saved before the step starts, and its result as soon as it ends, with or without a
        checkpoint. If the process dies in between, the step's evidence decides: proved done, the result is adopted;
        proved not done, the step runs; otherwise the resume stops and asks.

        Raises:
            StepDefinitionError: it was given before, or the step is ephemeral.
        """
        self._refuse_twice("at_most_once", self.modifiers.is_at_most_once)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_at_most_once=True)))

    def adopt(self, function: Callable[..., Any]) -> Self:
        """Modifier: rebuild the result of an `.at_most_once()` step that is proved done but was never recorded.

        Without it, the result is None.

        Args:
            function: sync or async; gets the arguments of the step's function, and returns what that would have
                returned.

        Raises:
            StepDefinitionError: it is not callable, or `.adopt()` was given before.
        """
        self._refuse_twice("adopt", self.modifiers.adopt is not None)
        adopt = checked.checked_function(self.name, "adopt", function)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, adopt=adopt)))

    def on_rerun(self, function: Callable[[Any], Any]) -> Self:
        """Modifier: undo the recorded execution right before a resume runs the step again.

        An error in the function fails the step, which then does not run.

        Args:
            function: sync or async; gets the recorded output.

        Raises:
            StepDefinitionError: it does not take one argument, the step is ephemeral, or `.on_rerun()` was given
                before.
        """
        self._refuse_twice("on_rerun", self.modifiers.on_rerun is not None)
        undo = of_one_argument(self.name, "on_rerun", checked.checked_function(self.name, "on_rerun", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, on_rerun=undo)))

    def _with_secret(self) -> Any:
        modifiers = self.modifiers
        self._refuse_twice("secret", modifiers.is_secret)
        if modifiers.is_ephemeral:
            refuse_needless_ephemeral(self.name)
        modifiers = checked_together(self.name, attrs.evolve(modifiers, is_ephemeral=True))
        return self._with(checked_together(self.name, attrs.evolve(modifiers, content="secret")))

    def rollback(self, function: Callable[..., Any]) -> Self:
        """Modifier: undo the step if the run fails or is cancelled later, newest step first, in any attempt.

        An error in the function neither stops the rollback of other steps nor hides why the run ended.

        Args:
            function: sync or async; gets the recorded output. Further parameters without a default get the step's
                arguments of the same names: `def refund(receipt, amount)`.

        Raises:
            StepDefinitionError: it has no parameter for the output, the step is ephemeral, or `.rollback()` was given
                before. The workflow is refused at the step if a parameter has the name of no argument.
        """
        self._refuse_twice("rollback", self.modifiers.rollback is not None)
        undo = of_output_and_arguments(self.name, checked.checked_function(self.name, "rollback", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, rollback=undo)))

    def on(self, executor: str, *, resources: Mapping[str, float] | None = None) -> Self:
        """Modifier: run the step elsewhere: on a thread, in another process, on another machine.

        It applies to `.python()` and to the members of a `.map()` of a function. It is not part of the step's identity:
        a step that moves to another executor keeps its recorded result.

        Args:
            executor: `thread`, `process`, `engine` (the engine's own process), or a name of
                `WorkflowEngine(executors={"gpu": …})`.
            resources: the resources that the step needs on a worker, such as `{"GPU": 1}`, if the executor supports
                them.

        Raises:
            StepDefinitionError: the name is invalid, the step is ephemeral, or `.on()` was given before.
        """
        self._refuse_twice("on", self.modifiers.placement is not None)
        placed = checked.placement(self.name, executor, resources)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, placement=placed)))

    def version(self, tag: str) -> Self:
        """Modifier: tag what the step means. A recorded result with another tag is stale.

        Args:
            tag: any text that is not blank, compared for equality.

        Raises:
            StepDefinitionError: the tag is not text or blank, or `.version()` was given before.
        """
        self._refuse_twice("version", self.modifiers.version is not None)
        check_name(tag, "version tag")
        return self._with(attrs.evolve(self.modifiers, version=tag))

    def cache(self, *, max_age: float | timedelta | None = None) -> Self:
        """Modifier: take the result of an equal call in any run of the store, instead of running the step.

        Calls are equal if function, code, arguments, `.version()` and `.reads()` are. The evidence of the other result is
        checked first; a result that does not hold is not taken. Failures are never taken.

        Args:
            max_age: seconds or a `timedelta`: take no result that was made longer ago; any age by default.

        Raises:
            StepDefinitionError: the age is not above 0, `.cache()` was given before, or the step has an effect or an
                output of its own: `.at_most_once()`, `.rollback()`, `.on_rerun()`, `.ephemeral()`, `.secret()`.
        """
        self._refuse_twice("cache", self.modifiers.cache_seconds is not None)
        seconds = checked.checked_age(self.name, max_age)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, cache_seconds=seconds)))

    def record_arguments(self) -> Self:
        """Modifier: record the arguments of the call as JSON, to read and query them later.

        Without it, a record has digests of the arguments, which say only whether they changed. Secrets are left out. Arguments
        that JSON cannot hold, or that take more than 64 KiB together, fail the step before its function is called.

        Raises:
            StepDefinitionError: `.record_arguments()` was given before, or the step is never recorded (`.ephemeral()`).
        """
        self._refuse_twice("record_arguments", self.modifiers.records_arguments)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, content="arguments")))
