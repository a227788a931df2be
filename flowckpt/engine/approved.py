"""What an approval is bound to, as digests that people and programs can compare."""

from __future__ import annotations

from hashlib import sha256

from flowckpt.checkpoint.wait import Wait
from flowckpt.evidence.model import EvidencePack
from flowckpt.hashing import canonical


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
