"""What an `.approval()` step gives to its workflow, and leaves in the record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs


@attrs.frozen
class Approval:
    """Who decided what, when and why.

    Attributes:
        approved: whether it was approved.
        by: who decided, as they called themselves.
        comment: why; may be empty.
        decided_at: when, aware and in UTC.
        digests: what was approved: the digest of each claim that the approval was asked for, by its description.
    """

    approved: bool
    by: str
    comment: str
    decided_at: datetime
    digests: Mapping[str, str] = attrs.field(factory=dict)
