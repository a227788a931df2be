"""`process_exists`: the very process that was captured still runs.

A pid alone identifies nothing, because pids come again; the machine's boot, the pid and the start time together do.
"""

from __future__ import annotations

import os

import attrs

from flowckpt import process
from flowckpt.errors import EvidenceCaptureError
from flowckpt.evidence.checks.base import VERIFIED, Check, CheckContext, Outcome, UncheckableClaimError, failed
from flowckpt.evidence.checks.reading import text_in, whole_number
from flowckpt.evidence.model import Capture, Evidence, State

_LARGEST_PID = 2**22  # Linux's PID_MAX_LIMIT; others' are smaller


class ProcessExists(Check):
    """Asks the kernel."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare boot, pid and start time."""
        facts = claim.expected
        pid = whole_number(facts, "pid", 1, _LARGEST_PID)
        started = whole_number(facts, "start_time", 1, 2**63)
        identity = process.ProcessIdentity(text_in(facts, "host"), text_in(facts, "boot_id"), pid, started)
        lives = process.is_alive(identity)
        if lives is None:
            raise UncheckableClaimError(f"process {pid} runs on {identity.host!r:.80}, which cannot be asked from here")
        if lives:
            return VERIFIED
        if identity.boot_id != process._boot_id():
            return failed(f"process {pid} is gone: the machine was started again since")
        now = process._start_time(pid)
        return failed(f"process {pid} is gone" + ("; its number belongs to another process now" if now else ""))

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record which process has the pid now; without a pid, this one."""
        if claim.state is not State.UNCAPTURED:
            return claim
        given = claim.expected.get("pid")
        pid = os.getpid() if given is None else whole_number(claim.expected, "pid", 1, _LARGEST_PID)
        started, boot_id = process._start_time(pid), process._boot_id()
        if not started or not boot_id:
            why = f"there is no process {pid}" if boot_id else "this system does not say when a process was started"
            raise EvidenceCaptureError(
                evidence_type=str(claim.evidence_type), description=claim.description, detail=why
            )
        facts = {"pid": pid, "start_time": started, "boot_id": boot_id, "host": os.uname().nodename}
        return attrs.evolve(
            claim, expected={**claim.expected, **facts}, state=State.CAPTURED, captured=Capture(context.clock.now())
        )
