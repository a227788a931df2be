"""Evidence: claims about the outside world, and their verification before anything is reused.

The names are imported when they are first used (PEP 562): to write claims, nothing of what checks them is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.errors import EvidenceCaptureError, EvidenceError
    from flowckpt.evidence.checks.base import (
        AllowedHost,
        Check,
        CheckContext,
        CheckTimeoutError,
        Limits,
        MalformedClaimError,
        Mode,
        Outcome,
        RefusedClaimError,
        StepFacts,
        UncheckableClaimError,
    )
    from flowckpt.evidence.claims import Capture, Evidence, EvidencePack, EvidenceType, State, register_predicate
    from flowckpt.evidence.constructors import (
        api_response,
        artifact_exists,
        command_exit,
        container_running,
        db_row,
        directory_digest,
        file_sha256,
        network_reachable,
        predicate,
        process_exists,
    )
    from flowckpt.evidence.report import Moment, PackOutcome, Verdict, VerdictStatus, VerificationReport
    from flowckpt.evidence.verifier import EvidenceVerifier


_ROOMS = {
    "AllowedHost": "flowckpt.evidence.checks.base",
    "Capture": "flowckpt.evidence.claims",
    "Check": "flowckpt.evidence.checks.base",
    "CheckContext": "flowckpt.evidence.checks.base",
    "CheckTimeoutError": "flowckpt.evidence.checks.base",
    "Evidence": "flowckpt.evidence.claims",
    "EvidenceCaptureError": "flowckpt.errors",
    "EvidenceError": "flowckpt.errors",
    "EvidencePack": "flowckpt.evidence.claims",
    "EvidenceType": "flowckpt.evidence.claims",
    "EvidenceVerifier": "flowckpt.evidence.verifier",
    "Limits": "flowckpt.evidence.checks.base",
    "MalformedClaimError": "flowckpt.evidence.checks.base",
    "Mode": "flowckpt.evidence.checks.base",
    "Moment": "flowckpt.evidence.report",
    "Outcome": "flowckpt.evidence.checks.base",
    "PackOutcome": "flowckpt.evidence.report",
    "RefusedClaimError": "flowckpt.evidence.checks.base",
    "State": "flowckpt.evidence.claims",
    "StepFacts": "flowckpt.evidence.checks.base",
    "UncheckableClaimError": "flowckpt.evidence.checks.base",
    "Verdict": "flowckpt.evidence.report",
    "VerdictStatus": "flowckpt.evidence.report",
    "VerificationReport": "flowckpt.evidence.report",
    "api_response": "flowckpt.evidence.constructors",
    "artifact_exists": "flowckpt.evidence.constructors",
    "command_exit": "flowckpt.evidence.constructors",
    "container_running": "flowckpt.evidence.constructors",
    "db_row": "flowckpt.evidence.constructors",
    "directory_digest": "flowckpt.evidence.constructors",
    "file_sha256": "flowckpt.evidence.constructors",
    "network_reachable": "flowckpt.evidence.constructors",
    "predicate": "flowckpt.evidence.constructors",
    "process_exists": "flowckpt.evidence.constructors",
    "register_predicate": "flowckpt.evidence.claims",
}

__all__ = [
    "AllowedHost",
    "Capture",
    "Check",
    "CheckContext",
    "CheckTimeoutError",
    "Evidence",
    "EvidenceCaptureError",
    "EvidenceError",
    "EvidencePack",
    "EvidenceType",
    "EvidenceVerifier",
    "Limits",
    "MalformedClaimError",
    "Mode",
    "Moment",
    "Outcome",
    "PackOutcome",
    "RefusedClaimError",
    "State",
    "StepFacts",
    "UncheckableClaimError",
    "Verdict",
    "VerdictStatus",
    "VerificationReport",
    "api_response",
    "artifact_exists",
    "command_exit",
    "container_running",
    "db_row",
    "directory_digest",
    "file_sha256",
    "network_reachable",
    "predicate",
    "process_exists",
    "register_predicate",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
