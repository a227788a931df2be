"""`flowckpt recover`: runs resumed in processes of their own."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.cli.recoverer import child

__all__ = ["child"]

__getattr__ = lazy_modules(__name__, *__all__)
