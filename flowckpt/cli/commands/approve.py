"""`flowckpt approve`."""

from __future__ import annotations

from flowckpt.cli.answers import answer_command

_HELP = """Approve what a run asks for. NAME is the approval's name, or the path of its step.

What the approval is bound to is checked first: where it is no longer what the run has asked for, nothing is recorded
and the exit code is 10. It is checked once more before the run uses the approval.
"""

command = answer_command("approve", is_approved=True, explained=_HELP, comment="looks good")
