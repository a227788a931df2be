"""What to say of files that are not as recorded."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from flowckpt.evidence.model import Capture


def age(between: timedelta) -> str:
    """Write a span for people, in one unit: `40 ms`, `12 s`, `2 h`, `3 days`.

    Args:
        between: the span; not negative.
    """
    seconds = between.total_seconds()
    for limit, unit, per in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / per:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def when_changed(found: os.stat_result, captured: Capture | None) -> str:
    """Say when a file was changed, measured from its capture; empty where there was none.

    Args:
        found: the file's status.
        captured: what was seen at the capture.
    """
    if captured is None:
        return ""
    changed = datetime.fromtimestamp(found.st_mtime, UTC)
    if changed >= captured.at:
        return f"; changed {age(changed - captured.at)} after the checkpoint"
    touched = datetime.fromtimestamp(found.st_ctime, UTC)
    if touched >= captured.at:
        return (
            f"; replaced or changed {age(touched - captured.at)} after the checkpoint, "
            f"though it says that it was written {age(captured.at - changed)} before"
        )
    return ""


def short(digest: str) -> str:
    """Return the beginning of a digest, enough to tell two apart.

    Args:
        digest: hexadecimal digits.
    """
    return f"{digest[:8]}…"
