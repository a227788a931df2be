"""Which step runs now, told to whatever it calls; `current_step` makes of it what a step sees."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from flowckpt.dsl import Step
    from flowckpt.execution.current_step import Desk, EngineDesk

Told: TypeAlias = "tuple[str, str, int, int, Mapping[str, Any], Step[Any], str, EngineDesk]"
ToldFar: TypeAlias = "tuple[str, str, int, int, Mapping[str, Any], None, str, Desk, int]"
"""In a worker: the step itself stays in the engine."""

_current: ContextVar[tuple[Any, ...] | None] = ContextVar("flowckpt_current_step", default=None)

told_now = _current.get
"""Return what was told last."""

tell_current = _current.set
"""Say which step runs now, as a `Told` or `ToldFar`, in this context and those that are copied from it; None for none.

It is told as a bare tuple of the fields of `CurrentStep`: few steps ask, and making one takes 0.6 µs.
"""
