"""One start or resume of a run, from taking the lease to the final event."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.engine.session import control, outbox, respond, session, suspend

__all__ = ["control", "outbox", "respond", "session", "suspend"]

__getattr__ = lazy_modules(__name__, *__all__)
