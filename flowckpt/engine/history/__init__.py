"""Earlier checkpoints of a run: rollback and fork."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.history import fork, rollback

__all__ = ["fork", "rollback"]

__getattr__ = lazy_modules(__name__, *__all__)
