"""`file_sha256`: a file has the very content that was recorded."""

from __future__ import annotations

import attrs

from flowckpt.errors import EvidenceCaptureError
from flowckpt.evidence.checks.base import (
    VERIFIED_BY_HASH,
    VERIFIED_BY_STAT,
    Check,
    CheckContext,
    Outcome,
    failed,
    uncaptured,
)
from flowckpt.evidence.checks.file_words import short, when_changed
from flowckpt.evidence.checks.reading import path_in, sha256_in
from flowckpt.evidence.file_digest import FileDigest, digest_file
from flowckpt.evidence.model import Capture, Evidence, State
from flowckpt.evidence.sandbox import shown_path
from flowckpt.evidence.settings import Mode
from flowckpt.evidence.signature import is_settled, signature_of


class FileSha256(Check):
    """Reads the file, or in the mode `stat` only looks at it."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the digest, or the signature where that suffices."""
        path, wanted, captured = path_in(claim), sha256_in(claim), claim.captured
        try:
            if (
                context.settings.mode is Mode.STAT
                and captured is not None
                and captured.signature is not None
                and captured.facts.get("sha256") == wanted  # the signature is that of this very content
                and signature_of(context.sandbox.status(path)) == captured.signature
            ):
                return VERIFIED_BY_STAT
            found = digest_file(path, context)
        except (FileNotFoundError, NotADirectoryError):
            return _missing(path)
        if found.sha256 == wanted:
            return VERIFIED_BY_HASH
        what = f"sha256 recorded {short(wanted)}, found {short(found.sha256)}{_size(found, claim)}"
        said = f"{shown_path(path)}: {what}{when_changed(found.status, captured)}"
        return failed(said, said, method="hash")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Say no where there is no file; else there is nothing to compare with."""
        path = path_in(claim)
        try:
            context.sandbox.status(path)
        except (FileNotFoundError, NotADirectoryError):
            return _missing(path)
        return uncaptured(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the digest, unless the program gave it, and the signature of what was read."""
        path = path_in(claim)
        wanted = sha256_in(claim) if claim.state is State.STATED else None
        try:
            found = digest_file(path, context)
        except (FileNotFoundError, NotADirectoryError):
            raise EvidenceCaptureError(
                evidence_type=str(claim.evidence_type),
                description=claim.description,
                detail=f"{shown_path(path)} does not exist",
            ) from None
        if wanted is not None and found.sha256 != wanted:
            return claim  # its verdict says so; the signature of another content must not be recorded
        now = context.clock.now()
        signature = signature_of(found.status) if is_settled(found.status, now) else None
        return attrs.evolve(
            claim,
            expected={**claim.expected, "sha256": wanted or found.sha256},
            state=claim.state if wanted else State.CAPTURED,
            captured=Capture(now, signature, {"sha256": found.sha256, "size": found.status.st_size}),
        )


def _missing(path: str) -> Outcome:
    said = f"{shown_path(path)} does not exist"
    return failed(said, said)


def _size(found: FileDigest, claim: Evidence) -> str:
    recorded = claim.captured.facts.get("size") if claim.captured else None
    if type(recorded) is not int or recorded == found.status.st_size:
        return ""
    return f"; {found.status.st_size} bytes, were {recorded}"
