"""Retention: which checkpoints of a live run stay, and which runs of a store."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.maintenance.retention import evict

__all__ = ["evict"]

__getattr__ = lazy_modules(__name__, *__all__)
