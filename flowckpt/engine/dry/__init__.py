"""Drives of the generator with all effects switched off: plans, searches, determinism."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.dry import planner, time_travel

__all__ = ["planner", "time_travel"]

__getattr__ = lazy_modules(__name__, *__all__)
