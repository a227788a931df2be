"""The time, a new UUID and a random number as steps, because they differ between executions.

A resume replays the workflow from its record, so the workflow must not read such values from the machine itself. As
steps, they are recorded, and a replay gets the recorded values: `started_at = yield now()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import attrs

from flowckpt.core.dsl.checks import check_name, check_published_name, note_created
from flowckpt.core.dsl.modifiers import PLAIN
from flowckpt.core.dsl.step import Action, Step


class WorldAction(Action):
    """The base of actions that read the engine's clock, or its sources of ids and random numbers."""

    __slots__ = ()
    refused: ClassVar[frozenset[str]] = frozenset(
        {"at_most_once", "ephemeral", "secret", "on", "cache", "reads", "writes"}  # its purpose is to be recorded
    )
    answers: ClassVar[Any] = Any
    """The type of its values, which are recorded with their type."""


@attrs.frozen
class NowAction(WorldAction):
    """Read the clock."""

    step_type: ClassVar[str] = "now"
    answers: ClassVar[Any] = datetime


@attrs.frozen
class UuidAction(WorldAction):
    """Make a UUID."""

    step_type: ClassVar[str] = "uuid"
    answers: ClassVar[Any] = UUID


@attrs.frozen
class RandomAction(WorldAction):
    """Draw a random number."""

    step_type: ClassVar[str] = "random"
    answers: ClassVar[Any] = float


@attrs.frozen
class PatchAction(WorldAction):
    """Ask whether the run takes a new branch of the code."""

    step_type: ClassVar[str] = "patched"
    answers: ClassVar[Any] = bool
    is_patch: ClassVar[bool] = True


@attrs.frozen(eq=False)
class PublishAction(WorldAction):
    """Publish a value.

    Attributes:
        name: its name.
        value: the value.
    """

    step_type: ClassVar[str] = "publish"

    name: str
    value: Any

    def arguments(self) -> Mapping[str, Any]:
        """Return the value."""
        return {"value": self.value}


def now(name: str = "now") -> Step[datetime]:
    """Create a step that returns the time, aware and in UTC. A replay returns the recorded time.

    The time comes from the engine's `clock`.

    Args:
        name: the name of the step.

    Raises:
        StepDefinitionError: the name is not text, blank, or longer than 500 characters.
    """
    return _make_step(name, NowAction())


def uuid(name: str = "uuid") -> Step[UUID]:
    """Create a step that returns a random UUID of version 4, from the engine's `new_uuid`.

    Args:
        name: the name of the step.

    Raises:
        StepDefinitionError: the name is not text, blank, or longer than 500 characters.
    """
    return _make_step(name, UuidAction())


def random(name: str = "random") -> Step[float]:
    """Create a step that returns a random number in [0, 1), from the engine's `random`.

    If you need many, seed a generator with one: `rng = Random((yield random()))`.

    Args:
        name: the name of the step.

    Raises:
        StepDefinitionError: the name is not text, blank, or longer than 500 characters.
    """
    return _make_step(name, RandomAction())


def patched(patch_id: str) -> Step[bool]:
    """Create a step that returns whether the run takes a new branch of the code; the answer is recorded.

    It is True in a run that reaches this point for the first time, and False in a run that passed it before the branch
    was written. The generator of a run gets the same answer each time; a child workflow gets its own:

        if (yield patched("tax-2027")):
            yield step("tax").python(new_tax, amount)
        else:
            yield step("tax").python(tax, amount)

    Args:
        patch_id: the name of the change, and of the step.

    Raises:
        StepDefinitionError: the id is not text, blank, or longer than 500 characters.
    """
    return _make_step(patch_id, PatchAction())


def publish_step(name: str, value: Any) -> Step[None]:
    """Return the step that publishes a value; warnings name the caller's caller as the line that created it."""
    return _make_step(f"publish {check_published_name(name)}", PublishAction(name, value), depth=4)


def _make_step(name: str, action: WorldAction, depth: int = 3) -> Step[Any]:
    check_name(name, "step name")
    note_created(action, name, depth)
    return Step(str.__str__(name), PLAIN, action)
