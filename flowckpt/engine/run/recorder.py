"""What a step left behind, appended to the history of its run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flowckpt.core.codec.blob import Recorded
from flowckpt.core.codec.results import append_result
from flowckpt.core.records import StepError
from flowckpt.core.records.result import result_of
from flowckpt.core.replay import Execute
from flowckpt.engine.rules.paths import UNDOABLE
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.values.superseded import NOT_UNDONE
from flowckpt.execution.runner import Outcome

_ATOMS = frozenset({int, str, float, bool, type(None)})
"""Trees that nobody can change, and that are decoded to themselves: they need nothing around them."""


def record(
    attempt: Attempt,
    command: Execute,
    outcome: Outcome,
    failure: StepError | None,
    started_at: datetime,
    duration_ms: float,
    arguments: Mapping[str, Any],
    function: str,
    code: str = "",
    tries: int = 1,
    marks: tuple[str, ...] = (),
    signal: str = "",
) -> None:
    """Append what a step left behind to the history; nothing is durable yet.

    Args:
        attempt: the attempt.
        command: the step, its path and its place in the code.
        outcome: how it ended.
        failure: how it failed, or None.
        started_at: when it was started.
        duration_ms: how long it ran, in milliseconds.
        arguments: what the record keeps of its arguments.
        function: the name of its function; empty where it has none.
        code: the fingerprint of that.
        tries: how often it was tried.
        marks: its marks, but for that of a step that can be undone.
        signal: the id of the signal that it took.
    """
    # Its arguments are given by place, because names take 0.2 µs.
    step, path, checkpointer = command.step, command.path, attempt.checkpointer
    action, modifiers, tree = step.action, step.modifiers, outcome.tree
    fields = {
        "name": step.name,
        "step_type": action.step_type,
        "_output": None if failure is not None else tree if type(tree) in _ATOMS else Recorded(tree),
        "duration_ms": duration_ms,
        "path": path,
        "started_at": started_at,
        "attempt": checkpointer.attempt,
        "tries": tries,
        "function": function,
        "version": modifiers.version,
        "location": command.location,
        "fingerprint": code,
        "arguments": arguments,
        "success": failure is None,
        "error": failure,
        "evidence": None if outcome.committed is None else outcome.committed.document,
        "marks": marks,
        "signal": signal,
    }
    if failure is None and modifiers.rollback is not None and not action.modifies_members:
        fields["marks"] = (*marks, UNDOABLE)
        attempt.undoable[path] = step
    append_result(checkpointer.history, result_of(fields))
    if failure is None and checkpointer.partial:
        checkpointer.partial.pop(path, None)
    attempt.in_doubt.discard(path)
    if path in attempt.superseded.by_path and NOT_UNDONE not in marks:
        attempt.settle(path)
