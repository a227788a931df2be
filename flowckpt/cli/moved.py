"""How much of a run was moved, for people."""

from __future__ import annotations

from flowckpt.counted import counted
from flowckpt.portable import CopiedRun, ExportedRun, ImportedRun


def size_of_run(done: ExportedRun | ImportedRun | CopiedRun) -> str:
    """Write what a file or a copy holds, in brackets: checkpoints that no longer count go with a run.

    Args:
        done: what was moved.
    """
    behind = f", {done.left_behind} of them left behind" if done.left_behind else ""
    attempts, results = counted(done.attempts, "attempt"), counted(done.steps, "result")
    return f"({attempts}, {counted(done.checkpoints, 'checkpoint')}{behind}, {results})"
