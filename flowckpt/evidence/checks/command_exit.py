"""`command_exit`: the step's command returned the very code that was promised. Nothing is ever run to find out.

A code is an `int` and nothing else: `True` is no 1, and 137 (a shell's word for "killed") is no -9 (Python's).
"""

from __future__ import annotations

from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    MalformedClaimError,
    Outcome,
    UncheckableClaimError,
    failed,
)
from flowckpt.evidence.checks.reading import whole_number
from flowckpt.evidence.model import Evidence

_SMALLEST, _LARGEST = -(2**31), 2**32 - 1  # what operating systems return, signals as negative numbers


class CommandExit(Check):
    """Compares two numbers."""

    is_local = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare with what the step's command returned, else with `metadata["actual_exit_code"]`."""
        wanted = whole_number(claim.expected, "exit_code", _SMALLEST, _LARGEST)
        ran, noted = context.settings.facts.exit_code, claim.metadata.get("actual_exit_code")
        for code in (ran, noted):
            if code is not None and type(code) is not int:
                raise MalformedClaimError(f"the actual exit code is {code!r:.80}, which is no whole number")
        if ran is not None and noted is not None and ran != noted:
            return failed(f"the step's command returned {ran}, and the claim's metadata says {noted}")
        found = noted if ran is None else ran
        if found is None:
            raise UncheckableClaimError(
                "no command of this step returned an exit code that is known",
                remedy="Give the step a command, or the claim a metadata['actual_exit_code'].",
            )
        return VERIFIED if found == wanted else failed(f"the command returned {found}, not {wanted}")
