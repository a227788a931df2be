"""The state of one attempt of a run while it lasts."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.run import in_doubt, inbox, lease, live, result_cache, undo_steps

__all__ = ["in_doubt", "inbox", "lease", "live", "result_cache", "undo_steps"]

__getattr__ = lazy_modules(__name__, *__all__)
