"""`flowckpt reject`."""

from __future__ import annotations

from flowckpt.cli.commands.approve import answer_command

_HELP = """Reject what a run asks for. NAME is the approval's name, or the path of its step.

The step of the run fails, unless the workflow handles it; then a resume asks again.
"""

command = answer_command("reject", is_approved=False, explained=_HELP, comment="the totals are wrong")
