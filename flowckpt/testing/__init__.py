"""Tools for tests of pipelines, stores and evidence: the fixture `flowckpt`, crash exploration, and conformance tests.

The contracts need pytest; the rest needs only flowckpt itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.testing.clock import FakeClock as FakeClock
    from flowckpt.testing.contract import CheckpointStoreContract as CheckpointStoreContract
    from flowckpt.testing.crashes import CrashesFoundError as CrashesFoundError
    from flowckpt.testing.crashes import CrashFinding as CrashFinding
    from flowckpt.testing.crashes import CrashReport as CrashReport
    from flowckpt.testing.crashes import explore_crashes as explore_crashes
    from flowckpt.testing.evidence_contract import EvidenceContract as EvidenceContract
    from flowckpt.testing.retention import RetentionContract as RetentionContract
    from flowckpt.testing.tester import WorkflowTester as WorkflowTester

_EXPORTS = {
    "flowckpt.testing.clock": "FakeClock",
    "flowckpt.testing.crashes": "CrashesFoundError CrashFinding CrashReport explore_crashes",
    "flowckpt.testing.contract": "CheckpointStoreContract",
    "flowckpt.testing.evidence_contract": "EvidenceContract",
    "flowckpt.testing.retention": "RetentionContract",
    "flowckpt.testing.tester": "WorkflowTester",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals())
