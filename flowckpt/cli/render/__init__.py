"""The output of commands: tables, plans and documents."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.cli.render import plan

__all__ = ["plan"]

__getattr__ = lazy_modules(__name__, *__all__)
