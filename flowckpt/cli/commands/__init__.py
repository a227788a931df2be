"""The commands, one a file; each is loaded when it is invoked."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.cli.commands import plan

__all__ = ["plan"]

__getattr__ = lazy_modules(__name__, *__all__)
