"""For tests of pipelines, stores and evidence: the fixture `flowckpt`, crash exploration, and conformance tests.

The contracts need pytest; the rest needs only flowckpt itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports
from flowckpt.testing.clock import FakeClock

if TYPE_CHECKING:
    from flowckpt.testing.contract import CheckpointStoreContract
    from flowckpt.testing.crashes import CrashesFoundError, CrashFinding, CrashReport, explore_crashes
    from flowckpt.testing.evidence_contract import EvidenceContract
    from flowckpt.testing.retention import RetentionContract
    from flowckpt.testing.tester import WorkflowTester

_EXPORTS = {
    "flowckpt.testing.crashes": "CrashesFoundError CrashFinding CrashReport explore_crashes",
    "flowckpt.testing.contract": "CheckpointStoreContract",
    "flowckpt.testing.evidence_contract": "EvidenceContract",
    "flowckpt.testing.retention": "RetentionContract",
    "flowckpt.testing.tester": "WorkflowTester",
}

__all__ = [
    "CheckpointStoreContract",
    "CrashFinding",
    "CrashReport",
    "CrashesFoundError",
    "EvidenceContract",
    "FakeClock",
    "RetentionContract",
    "WorkflowTester",
    "explore_crashes",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
