"""How steps are done: one file an action, and what surrounds every action."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.execution import command, files, interrupts, runner, thread

__all__ = ["command", "files", "interrupts", "runner", "thread"]

__getattr__ = lazy_modules(__name__, *__all__)
