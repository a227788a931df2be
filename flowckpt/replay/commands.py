"""What replay asks of whoever drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from flowckpt.checkpoint import StepResult
from flowckpt.dsl import Step
from flowckpt.fieldwise import Fieldwise


@attrs.define(eq=False, repr=False)
class Execute:
    """Run this step now."""

    path: str
    step: Step[Any]
    location: str


@attrs.define(eq=False, repr=False)
class Restore:
    """Answer the generator with this recorded result."""

    path: str
    step: Step[Any]
    result: StepResult
    is_spare: bool = False
    """Whether the result is no longer, or not yet again, part of the run."""


@attrs.define(eq=False, repr=False)
class Enter:
    """Go into this step, which is made of steps: they have records of their own, and some may have to run."""

    path: str
    step: Step[Any]
    location: str
    result: StepResult | None = None
    """Its own recorded result; None where it has not ended."""
    nested: Sequence[StepResult] = ()
    """The recorded results of its steps, and of theirs."""
    is_spare: bool = False
    """Whether the results are no longer, or not yet again, part of the run."""
    is_bound: bool = True
    """Whether its steps must be those of the record."""


@attrs.define(eq=False, repr=False)
class Finish(Fieldwise):
    """The generator returned."""

    output: Any


@attrs.define(eq=False, repr=False)
class Crash(Fieldwise):
    """The generator raised."""

    error: BaseException


Command: TypeAlias = Execute | Restore | Enter | Finish | Crash
