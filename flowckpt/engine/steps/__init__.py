"""How one step is restored or executed, and the steps that consist of steps."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.steps import child, fan_out, members, tries, wait

__all__ = ["child", "fan_out", "members", "tries", "wait"]

__getattr__ = lazy_modules(__name__, *__all__)
