"""Evidence: claims about the outside world, and their verification before anything is reused.

The names are imported at their first use (PEP 562): writing claims does not need the code that checks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.errors import EvidenceCaptureError as EvidenceCaptureError
    from flowckpt.errors import EvidenceError as EvidenceError
    from flowckpt.evidence import claims as claims
    from flowckpt.evidence import databases as databases
    from flowckpt.evidence import documents as documents
    from flowckpt.evidence import report as report
    from flowckpt.evidence import verifier as verifier
    from flowckpt.evidence.checks.base import AllowedHost as AllowedHost
    from flowckpt.evidence.checks.base import Check as Check
    from flowckpt.evidence.checks.base import CheckContext as CheckContext
    from flowckpt.evidence.checks.base import CheckTimeoutError as CheckTimeoutError
    from flowckpt.evidence.checks.base import Limits as Limits
    from flowckpt.evidence.checks.base import MalformedClaimError as MalformedClaimError
    from flowckpt.evidence.checks.base import Mode as Mode
    from flowckpt.evidence.checks.base import Outcome as Outcome
    from flowckpt.evidence.checks.base import RefusedClaimError as RefusedClaimError
    from flowckpt.evidence.checks.base import StepFacts as StepFacts
    from flowckpt.evidence.checks.base import UncheckableClaimError as UncheckableClaimError
    from flowckpt.evidence.claims import Capture as Capture
    from flowckpt.evidence.claims import Evidence as Evidence
    from flowckpt.evidence.claims import EvidencePack as EvidencePack
    from flowckpt.evidence.claims import EvidenceType as EvidenceType
    from flowckpt.evidence.claims import State as State
    from flowckpt.evidence.claims import register_database as register_database
    from flowckpt.evidence.claims import register_predicate as register_predicate
    from flowckpt.evidence.constructors import api_response as api_response
    from flowckpt.evidence.constructors import artifact_exists as artifact_exists
    from flowckpt.evidence.constructors import command_exit as command_exit
    from flowckpt.evidence.constructors import container_running as container_running
    from flowckpt.evidence.constructors import db_row as db_row
    from flowckpt.evidence.constructors import directory_digest as directory_digest
    from flowckpt.evidence.constructors import file_sha256 as file_sha256
    from flowckpt.evidence.constructors import network_reachable as network_reachable
    from flowckpt.evidence.constructors import predicate as predicate
    from flowckpt.evidence.constructors import process_exists as process_exists
    from flowckpt.evidence.report import Moment as Moment
    from flowckpt.evidence.report import PackOutcome as PackOutcome
    from flowckpt.evidence.report import Verdict as Verdict
    from flowckpt.evidence.report import VerdictStatus as VerdictStatus
    from flowckpt.evidence.report import VerificationReport as VerificationReport
    from flowckpt.evidence.verifier import EvidenceVerifier as EvidenceVerifier


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

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="claims databases documents report verifier")
