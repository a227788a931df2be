"""Steps that run somewhere else: what is sent, what comes back, and how it is waited for."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.execution.remote import executors

__all__ = ["executors"]

__getattr__ = lazy_modules(__name__, *__all__)
