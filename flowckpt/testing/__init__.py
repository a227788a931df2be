"""For tests of pipelines and of stores: a clock that tests move, and the conformance tests of stores.

The contracts need pytest and pytest-asyncio; `FakeClock` needs only flowckpt itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports
from flowckpt.testing.clock import FakeClock

if TYPE_CHECKING:
    from flowckpt.testing.contract import CheckpointStoreContract
    from flowckpt.testing.retention import RetentionContract

_EXPORTS = {
    "flowckpt.testing.contract": "CheckpointStoreContract",
    "flowckpt.testing.retention": "RetentionContract",
}

__all__ = ["CheckpointStoreContract", "FakeClock", "RetentionContract"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
