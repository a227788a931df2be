"""Earlier checkpoints of a run: rollback and fork."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.history import checkpoints, fork

__all__ = ["checkpoints", "fork"]

__getattr__ = lazy_modules(__name__, *__all__)
