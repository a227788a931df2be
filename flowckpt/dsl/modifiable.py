"""What a step is before and after its action: a name and modifiers, and the methods that add them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs

from flowckpt.dsl.arity import of_one_argument
from flowckpt.dsl.caller import caller
from flowckpt.dsl.modifiers import (
    CHECKPOINTED,
    PLAIN,
    Modifiers,
    checked_timeout,
    checked_together,
    refuse_needless_ephemeral,
)
from flowckpt.dsl.path import MAX_NAME_LENGTH
from flowckpt.errors import StepDefinitionError
from flowckpt.fieldwise import Fieldwise
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.dsl import claimed_evidence as evidences
    from flowckpt.dsl import placement as placements
    from flowckpt.dsl import retry as retries
else:
    evidences = LazyModule("flowckpt.dsl.claimed_evidence")
    retries = LazyModule("flowckpt.dsl.retry")
    placements = LazyModule("flowckpt.dsl.placement")


@attrs.frozen(eq=False, repr=False)
class Modifiable(Fieldwise):
    """What a step is before and after its action: a name and modifiers."""

    name: str
    modifiers: Modifiers

    def __repr__(self) -> str:
        return f"<step {self.name!r} without an action>"

    def _with(self, modifiers: Modifiers) -> Self:
        return attrs.evolve(self, modifiers=modifiers)

    def _refuse_twice(self, modifier: str, was_given: bool) -> None:
        if was_given:
            raise StepDefinitionError(
                f"step {self.name!r}: .{modifier}() is given twice",
                step=self.name,
                where=caller(),
                remedy="Keep one of them: the order of modifiers has no meaning, so neither could win.",
            )

    def checkpoint(self, id: str | None = None) -> Self:  # noqa: A002 - the keyword is part of the language
        """Take a checkpoint after the step.

        Args:
            id: what to call it; the step's path where not given.

        Raises:
            StepDefinitionError: it was given already, the id is blank, or the step is ephemeral.
        """
        modifiers = self.modifiers
        if id is None and modifiers is PLAIN:  # by far the most common: no evolve (5 µs)
            return self._with_checkpoint()
        self._refuse_twice("checkpoint", modifiers.has_checkpoint)
        if id is not None:
            check_name(id, "checkpoint id")
        return self._with(checked_together(self.name, attrs.evolve(modifiers, has_checkpoint=True, checkpoint_id=id)))

    def _with_checkpoint(self) -> Self:
        return attrs.evolve(self, modifiers=CHECKPOINTED)

    def retry(
        self,
        attempts: int,
        backoff: float = 0.0,
        max_delay: float = 60.0,
        jitter: float = 0.0,
        on: retries.Worth | tuple[retries.Worth, ...] = (Exception,),
        deadline: float | None = None,
    ) -> Self:
        """Try the step again when it fails.

        Args:
            attempts: tries in all, the first one included.
            backoff: seconds before the second try; each further wait is twice as long.
            max_delay: the longest wait, in seconds.
            jitter: fraction (0 to 1) by which a wait varies at random.
            on: what is worth another try: exception classes, and functions that get the exception and return True
                or False; one of them is enough.
            deadline: seconds after the first try began in which another may begin. No wait goes beyond it; a try that
                runs is not stopped by it (that is what `.timeout()` does).

        Raises:
            StepDefinitionError: an argument is out of its range, or `.retry()` was given already.
        """
        self._refuse_twice("retry", self.modifiers.retry is not None)
        policy = retries.retry_policy(self.name, attempts, backoff, max_delay, jitter, on, deadline)
        return self._with(attrs.evolve(self.modifiers, retry=policy))

    def timeout(self, seconds: float) -> Self:
        """Limit how long one try may take; a try that takes longer fails with `StepTimeoutError`.

        A synchronous function with a timeout runs on a thread of its own, and is left behind when it does not end.

        Args:
            seconds: the limit, above 0.

        Raises:
            StepDefinitionError: the number is not above 0, or `.timeout()` was given already.
        """
        self._refuse_twice("timeout", self.modifiers.timeout_seconds is not None)
        return self._with(attrs.evolve(self.modifiers, timeout_seconds=checked_timeout(self.name, seconds)))

    def ephemeral(self) -> Self:
        """Never record the step and run it again at each replay: for a model, a connection, an open file.

        Raises:
            StepDefinitionError: it was given already, or the step is secret or has a checkpoint.
        """
        if self.modifiers.is_secret:
            refuse_needless_ephemeral(self.name)
        self._refuse_twice("ephemeral", self.modifiers.is_ephemeral)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_ephemeral=True)))

    def evidence(self, *claims: Any, require_all: bool = True, min_verified: int | None = None) -> Self:
        """Claim what is true of the outside world once the step is done.

        The claims are checked after each try, before anything is saved: one that fails fails the try. They are checked
        again before a resume reuses the result, except those that are `.transient()`.

        Args:
            *claims: claims (`flowckpt.evidence`), functions that get the step's result and return a claim or a list
                of them, or one `EvidencePack` alone.
            require_all: whether every claim must hold.
            min_verified: how many must hold, where some may fail; sets `require_all` aside.

        Raises:
            StepDefinitionError: an argument is none of these, or `.evidence()` was given already.
        """
        self._refuse_twice("evidence", self.modifiers.evidence is not None)
        claimed = evidences.claimed_evidence(self.name, claims, require_all, min_verified)
        return self._with(attrs.evolve(self.modifiers, evidence=claimed))

    def at_most_once(self) -> Self:
        """Never repeat the step on a guess: for a payment, a mail, anything that must not be done twice.

        A mark is made durable before the step begins, and its result as soon as it ends, checkpoint or not. When the
        process dies in between, the step's evidence decides: proved done, it is adopted; proved not done, it is run;
        and where the evidence cannot tell, the resume stops and asks.

        Raises:
            StepDefinitionError: it was given already, or the step is ephemeral.
        """
        self._refuse_twice("at_most_once", self.modifiers.is_at_most_once)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_at_most_once=True)))

    def adopt(self, function: Callable[..., Any]) -> Self:
        """Rebuild the result of an `.at_most_once()` step whose effect is proved, but whose end was never recorded.

        Args:
            function: gets the arguments that the step's own function gets, and returns what it would have returned.

        Raises:
            StepDefinitionError: it cannot be called, or `.adopt()` was given already.
        """
        self._refuse_twice("adopt", self.modifiers.adopt is not None)
        adopt = self._callable("adopt", function)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, adopt=adopt)))

    def on_rerun(self, function: Callable[[Any], Any]) -> Self:
        """Undo what the recorded execution left behind, right before a resume runs the step again.

        Args:
            function: gets the recorded output.

        Raises:
            StepDefinitionError: it cannot be called with one argument, the step is ephemeral, or `.on_rerun()` was given already.
        """
        self._refuse_twice("on_rerun", self.modifiers.on_rerun is not None)
        undo = of_one_argument(self.name, "on_rerun", self._callable("on_rerun", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, on_rerun=undo)))

    def _with_secret(self) -> Any:
        modifiers = self.modifiers
        self._refuse_twice("secret", modifiers.is_secret)
        if modifiers.is_ephemeral:
            refuse_needless_ephemeral(self.name)
        return self._with(checked_together(self.name, attrs.evolve(modifiers, is_secret=True, is_ephemeral=True)))

    def rollback(self, function: Callable[[Any], Any]) -> Self:
        """Undo what the step did, when the run fails or is cancelled later: newest first, in every attempt.

        Args:
            function: gets the recorded output, sync or async.

        Raises:
            StepDefinitionError: it cannot be called with one argument, the step is ephemeral, or `.rollback()` was given already.
        """
        self._refuse_twice("rollback", self.modifiers.rollback is not None)
        undo = of_one_argument(self.name, "rollback", self._callable("rollback", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, rollback=undo)))

    def on(self, executor: str, *, resources: Mapping[str, float] | None = None) -> Self:
        """Run the step elsewhere: on a thread, in another process, on another machine.

        It is for `.python()` and for the members of a `.map()` of a function. Where a step runs is no part of its
        identity: a step that is moved to another executor keeps its recorded result.

        Args:
            executor: `thread`, `process`, `engine` (the engine's own process, where a default executor is given), or a
                name that the engine knows: `WorkflowEngine(executors={"gpu": …})`.
            resources: what a worker must have, and how much of it the step takes, where the executor knows resources.

        Raises:
            StepDefinitionError: it is no name, the step is ephemeral, or `.on()` was given already.
        """
        self._refuse_twice("on", self.modifiers.placement is not None)
        placed = placements.placement(self.name, executor, resources)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, placement=placed)))

    def _callable(self, modifier: str, function: Any) -> Any:
        if not callable(function):
            raise StepDefinitionError(
                f"step {self.name!r}: .{modifier}() needs a function, got {function!r:.80} ({type(function).__name__})",
                step=self.name,
                where=caller(),
            )
        return function

    def version(self, tag: str) -> Self:
        """Tag what the step means; a recorded result with another tag is no longer this step's result.

        Args:
            tag: any text, compared for equality.

        Raises:
            StepDefinitionError: the tag is no text or blank, or `.version()` was given already.
        """
        self._refuse_twice("version", self.modifiers.version is not None)
        check_name(tag, "version tag")
        return self._with(attrs.evolve(self.modifiers, version=tag))


def check_name(name: object, what: str) -> None:
    """Refuse what cannot name a step.

    Args:
        name: the name.
        what: what it is to name, for the error.

    Raises:
        StepDefinitionError: it is no text, blank, no valid Unicode, or longer than 500 characters.
    """
    if not isinstance(name, str):
        raise StepDefinitionError(f"a {what} must be text, got {name!r} ({type(name).__name__})", where=caller())
    if not name.strip():
        raise StepDefinitionError(f"a {what} must not be blank, got {name!r}", step=name, where=caller())
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StepDefinitionError(f"a {what} must be valid Unicode, got {name!r:.80}", where=caller()) from None
    if len(name) > MAX_NAME_LENGTH:
        raise StepDefinitionError(
            f"a {what} may have {MAX_NAME_LENGTH} characters, got {len(name)}: {name[:40]!r}…",
            step=name[:MAX_NAME_LENGTH],
            where=caller(),
            remedy="Name the work, and pass the data as arguments.",
        )
