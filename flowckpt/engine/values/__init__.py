"""The values that callers hand to the engine and get back from it."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.values import inputs

__all__ = ["inputs"]

__getattr__ = lazy_modules(__name__, *__all__)
