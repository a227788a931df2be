"""`artifact_exists`: a file, a directory, or anything at all is there.

Where it was captured, a file must not have become smaller: "it is there" says nothing for one that is half written.
"""

from __future__ import annotations

import os
import stat

import attrs

from flowckpt.errors import EvidenceCaptureError
from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    MalformedClaimError,
    Outcome,
    failed,
    uncaptured,
)
from flowckpt.evidence.checks.file_words import when_changed
from flowckpt.evidence.checks.reading import path_in
from flowckpt.evidence.model import Capture, Evidence, State
from flowckpt.evidence.sandbox import kind_of, shown_path
from flowckpt.evidence.verdict import Moment

_TYPES = ("file", "directory", "any")


class ArtifactExists(Check):
    """Looks, and reads nothing."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Look the path up, links inside the base path followed."""
        outcome, found = _look(claim, context)
        if found is None:
            return outcome
        recorded = claim.captured.facts.get("size") if claim.captured else None
        if type(recorded) is int and stat.S_ISREG(found.st_mode) and found.st_size < recorded:
            path = shown_path(path_in(claim))
            said = f"{path}: {recorded} bytes recorded, only {found.st_size} found{when_changed(found, claim.captured)}"
            return failed(said, said)
        return outcome

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Look, too; but of a step in doubt something may be there half written, which proves nothing."""
        outcome, found = _look(claim, context)
        return uncaptured(claim) if found is not None and context.settings.moment is Moment.IN_DOUBT else outcome

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the size of a file."""
        outcome, found = _look(claim, context)
        if found is None:
            raise EvidenceCaptureError(
                evidence_type=str(claim.evidence_type), description=claim.description, detail=outcome.error or ""
            )
        facts = {"size": found.st_size} if stat.S_ISREG(found.st_mode) else {}
        return attrs.evolve(claim, state=State.CAPTURED, captured=Capture(context.clock.now(), None, facts))


def _look(claim: Evidence, context: CheckContext) -> tuple[Outcome, os.stat_result | None]:
    path, wanted = path_in(claim), claim.expected.get("type", "any")
    if wanted not in _TYPES:
        raise MalformedClaimError(f"'type' is {wanted!r:.80}", remedy=f"Write one of {', '.join(_TYPES)}.")
    try:
        found = context.sandbox.status(path)
    except (FileNotFoundError, NotADirectoryError):
        said = f"{shown_path(path)} does not exist"
        return failed(said, said), None
    is_file, is_directory = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
    if wanted == "any" or (is_file if wanted == "file" else is_directory):
        return VERIFIED, found
    said = f"{shown_path(path)} is {kind_of(found)}, not a {wanted}"
    return failed(said, said), None
