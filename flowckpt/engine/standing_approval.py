"""An approval that was given, and binds what comes behind it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from flowckpt.dsl.waits import ApprovalAction
    from flowckpt.evidence.model import EvidencePack


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
