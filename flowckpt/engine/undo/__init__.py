"""Compensation: undo what completed steps did, newest first."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.undo import compensate, plan_resume

__all__ = ["compensate", "plan_resume"]

__getattr__ = lazy_modules(__name__, *__all__)
