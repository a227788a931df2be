"""Evidence: claims about the outside world, and their verification before anything is reused.

The names are imported when they are first used (PEP 562): to write claims, nothing of what checks them is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowckpt.errors import EvidenceCaptureError, EvidenceError
    from flowckpt.evidence.checks.base import (
        Check,
        CheckContext,
        CheckTimeoutError,
        MalformedClaimError,
        Outcome,
        RefusedClaimError,
        UncheckableClaimError,
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
    from flowckpt.evidence.evidence_type import EvidenceType
    from flowckpt.evidence.model import Capture, Evidence, EvidencePack, State
    from flowckpt.evidence.registry import register_predicate
    from flowckpt.evidence.settings import AllowedHost, Limits, Mode, StepFacts
    from flowckpt.evidence.verdict import Moment, PackOutcome, Verdict, VerdictStatus, VerificationReport
    from flowckpt.evidence.verifier import EvidenceVerifier

_ROOMS = {
    "AllowedHost": "settings",
    "Capture": "model",
    "Check": "checks.base",
    "CheckContext": "checks.base",
    "CheckTimeoutError": "checks.base",
    "Evidence": "model",
    "EvidenceCaptureError": "errors",
    "EvidenceError": "errors",
    "EvidencePack": "model",
    "EvidenceType": "evidence_type",
    "EvidenceVerifier": "verifier",
    "Limits": "settings",
    "MalformedClaimError": "checks.base",
    "Mode": "settings",
    "Moment": "verdict",
    "Outcome": "checks.base",
    "PackOutcome": "verdict",
    "RefusedClaimError": "checks.base",
    "State": "model",
    "StepFacts": "settings",
    "UncheckableClaimError": "checks.base",
    "Verdict": "verdict",
    "VerdictStatus": "verdict",
    "VerificationReport": "verdict",
    "api_response": "constructors",
    "artifact_exists": "constructors",
    "command_exit": "constructors",
    "container_running": "constructors",
    "db_row": "constructors",
    "directory_digest": "constructors",
    "file_sha256": "constructors",
    "network_reachable": "constructors",
    "predicate": "constructors",
    "process_exists": "constructors",
    "register_predicate": "registry",
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


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'flowckpt.evidence' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"flowckpt.evidence.{room}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
