"""Execution of steps: one module per kind of action, and the parts that all actions share."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.execution import claims, command, files, interrupts, runner, thread

__all__ = ["claims", "command", "files", "interrupts", "runner", "thread"]

__getattr__ = lazy_modules(__name__, *__all__)
