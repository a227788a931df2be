"""What a `.command()` step gives to its workflow, and leaves in the record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs


@attrs.frozen
class CommandOutput:
    r"""How a command ended, and what it wrote.

    Attributes:
        exit_code: what it returned; the negative number of the signal that killed it.
        stdout: its standard output, as UTF-8; bytes that are none stand as `\xNN`.
        stderr: its standard error, likewise.
        stdout_truncated: how many bytes of the standard output were left out, in the middle.
        stderr_truncated: how many bytes of the standard error were left out, likewise.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: int = 0
    stderr_truncated: int = 0


# What an `.approval()` step gives to its workflow, and leaves in the record.


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
