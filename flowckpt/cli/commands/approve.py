"""`flowckpt approve`."""

from __future__ import annotations

from flowckpt.cli.answers import answer_command

_HELP = """Approve what a run asks for. NAME is the approval's name, or the path of its step.

The facts that the approval is bound to are checked first: if they differ from what the run has asked for, nothing is
recorded and the exit code is 10. They are checked once more before the run uses the approval.
"""

command = answer_command("approve", is_approved=True, explained=_HELP, comment="looks good")
