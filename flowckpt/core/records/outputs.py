"""Outputs that flowckpt makes for steps: of a command, and of an approval."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs


@attrs.frozen
class CommandOutput:
    r"""How a command ended, and what it wrote: the output of a `.command()` step.

    Attributes:
        exit_code: the exit code; if a signal killed it, the negative number of the signal.
        stdout: standard output as UTF-8; invalid bytes appear as `\xNN`.
        stderr: standard error, in the same form.
        stdout_truncated: the number of bytes omitted from the middle of standard output.
        stderr_truncated: the number of bytes omitted from the middle of standard error.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: int = 0
    stderr_truncated: int = 0


@attrs.frozen
class Approval:
    """A decision, with person, time and comment: the output of an `.approval()` step.

    Annotate a workflow that returns it with this type.

    Attributes:
        approved: whether it was approved.
        by: who decided, in their own words.
        comment: why; may be empty.
        decided_at: when, aware and in UTC.
        digests: what was approved: the digest of each claim, by its description.
    """

    approved: bool
    by: str
    comment: str
    decided_at: datetime
    digests: Mapping[str, str] = attrs.field(factory=dict)
