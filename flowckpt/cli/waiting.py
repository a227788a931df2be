"""What a suspended run waits for, for people: what it is, and the very commands that go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from flowckpt.checkpoint.recorded_waits import due_at
from flowckpt.checkpoint.wait import Wait, WaitKind, shown_moment
from flowckpt.cli.output import say
from flowckpt.cli.resume_hint import command_line, resume_command
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.terminal_text import escaped
from flowckpt.engine.approved import digests_of

_MOST = 8


def wait_lines(waits: Sequence[Wait]) -> list[str]:
    """Write what a run waits for.

    Args:
        waits: the waits.
    """
    lines = []
    for wait in waits[:_MOST]:
        lines.append(f"waiting: {escaped(str(wait))}")
        lines += [f"  to approve: {escaped(said)}: {digest}" for said, digest in digests_of(wait).items()]
        if wait.voided:
            lines.append(f"  asked anew: {escaped(wait.voided)}")
    if len(waits) > _MOST:
        lines.append(f"waiting: {len(waits) - _MOST} more")
    return lines


def show_ways_on(workflow_id: str, waits: Sequence[Wait], store: StoreChoice) -> None:
    """Show on standard error the commands that continue a suspended run.

    Args:
        workflow_id: the run.
        waits: what it waits for.
        store: the store that it is in.
    """
    if store.spec.startswith("memory:"):
        say("It cannot be resumed: its store was the memory of this process.")
        return
    for line in _answers(workflow_id, waits, store):
        say(line)
    first = due_at(waits)
    when = "" if first is None else f", from {shown_moment(first)} on"
    if any(wait.kind is not WaitKind.SLEEP for wait in waits):
        when = ", once that is done" + (f"; or from {shown_moment(first)} on" if first is not None else "")
    say(f"Resume with: {resume_command(workflow_id, store)}{when}")


def _answers(workflow_id: str, waits: Iterable[Wait], store: StoreChoice) -> list[str]:
    asked = [wait for wait in waits if wait.kind is not WaitKind.SLEEP]
    names = Counter(wait.name for wait in asked if wait.kind is WaitKind.APPROVAL)
    lines: dict[str, None] = {}
    for wait in asked:
        if wait.kind is WaitKind.SIGNAL:
            lines[f"Send it with: {command_line('signal', store, workflow_id, wait.name)}"] = None
        else:
            name = wait.name if names[wait.name] == 1 else wait.path
            lines[f"Approve with: {command_line('approve', store, workflow_id, name)}"] = None
    shown = list(lines)
    return [*shown[:_MOST], *([f"… and {len(shown) - _MOST} more"] if len(shown) > _MOST else [])]
