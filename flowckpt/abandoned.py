"""What ends a step that nobody waits for any more."""

from __future__ import annotations


class AbandonedStepError(BaseException):
    """Raised inside a step that nobody waits for any more, so that its `finally` blocks run and it ends."""
