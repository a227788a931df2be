"""An approval that was given, and binds the steps after it."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.records.wait import Wait
from flowckpt.evidence.claims import EvidencePack

if TYPE_CHECKING:
    from flowckpt.core.dsl.waits import ApprovalAction


@attrs.define(eq=False, repr=False)
class StandingApproval:
    """An approval that was given, and of which the bytes that were approved must stay what they are.

    Attributes:
        path: its step.
        action: what the step asks for.
        pack: what was approved, with its facts.
        by: who approved.
        asked_at: when it was asked for.
        request: the question that was answered; empty where an earlier attempt has asked it.
        is_void: whether it no longer holds.
    """

    path: str
    action: ApprovalAction
    pack: EvidencePack
    by: str
    asked_at: datetime
    request: str = ""
    is_void: bool = False


# What an approval is bound to, as digests that people and programs can compare.


def digests_of(wait: Wait) -> dict[str, str]:
    """Return what an approval is bound to: the digest of each claim, by its description.

    Args:
        wait: the approval.
    """
    if not wait.claims:
        return {}
    found = {}
    for claim in EvidencePack.from_document(wait.claims):
        facts = claim.expected
        digest = facts.get("sha256") or facts.get("digest")
        if not isinstance(digest, str):
            digest = sha256(canonical(claim.to_document()["expected"])).hexdigest()
        found[claim.description] = digest
    return found
