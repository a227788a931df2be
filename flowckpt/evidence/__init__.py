"""Evidence: claims about the outside world, and their verification before anything is reused.

The names are imported when they are first used (PEP 562): to write claims, nothing of what checks them is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.errors import EvidenceCaptureError, EvidenceError
    from flowckpt.evidence import claims as claims
    from flowckpt.evidence import databases as databases
    from flowckpt.evidence import documents as documents
    from flowckpt.evidence import report as report
    from flowckpt.evidence import verifier as verifier
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
    from flowckpt.evidence.claims import (
        Capture,
        Evidence,
        EvidencePack,
        EvidenceType,
        State,
        register_database,
        register_predicate,
    )
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


_EXPORTS = {
    "flowckpt.errors": "EvidenceCaptureError EvidenceError",
    "flowckpt.evidence.checks.base": "AllowedHost Check CheckContext CheckTimeoutError Limits MalformedClaimError Mode Outcome "
    "RefusedClaimError StepFacts UncheckableClaimError",
    "flowckpt.evidence.claims": "Capture Evidence EvidencePack EvidenceType State register_database register_predicate",
    "flowckpt.evidence.constructors": "api_response artifact_exists command_exit container_running db_row directory_digest file_sha256 "
    "network_reachable predicate process_exists",
    "flowckpt.evidence.report": "Moment PackOutcome Verdict VerdictStatus VerificationReport",
    "flowckpt.evidence.verifier": "EvidenceVerifier",
}

# fmt: off
__all__ = [
    "AllowedHost", "Capture", "Check", "CheckContext", "CheckTimeoutError", "Evidence", "EvidenceCaptureError",
    "EvidenceError", "EvidencePack", "EvidenceType", "EvidenceVerifier", "Limits", "MalformedClaimError", "Mode",
    "Moment", "Outcome", "PackOutcome", "RefusedClaimError", "State", "StepFacts", "UncheckableClaimError",
    "Verdict", "VerdictStatus", "VerificationReport", "api_response", "artifact_exists", "command_exit",
    "container_running", "db_row", "directory_digest", "file_sha256", "network_reachable", "predicate",
    "process_exists", "register_database", "register_predicate",
]
# fmt: on

__getattr__, __dir__ = lazy_exports(
    __name__, _EXPORTS, __all__, globals(), modules="claims databases documents report verifier"
)
