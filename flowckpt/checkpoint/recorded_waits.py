"""What a run waits for, as the metadata of its checkpoints say it: most say nothing, and load no wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from datetime import datetime

    from flowckpt.checkpoint import wait as waiting
    from flowckpt.checkpoint.wait import Wait
else:
    waiting = LazyModule("flowckpt.checkpoint.wait")

KEY = "waits"
"""In the metadata of a checkpoint: what the run waits for, by the path of the step."""
TAKEN = "taken_signals"
"""In the metadata: the ids of signals that were taken by results which no longer count."""


def waits_in(metadata: Mapping[str, Any]) -> tuple[Wait, ...]:
    """Return what a run waits for, in the order in which it came to it.

    Args:
        metadata: of its newest checkpoint.
    """
    return tuple(waiting.Wait.from_document(path, document) for path, document in metadata.get(KEY, {}).items())


def open_waits(metadata: Mapping[str, Any], results: Iterable[Any]) -> tuple[Wait, ...]:
    """Return what a run waits for without the waits that have ended: their steps have results that are not older.

    Args:
        metadata: of its newest checkpoint.
        results: the `StepResult`s of its steps.
    """
    ended = {result.path: result for result in results}
    return tuple(wait for wait in waits_in(metadata) if wait.path not in ended or wait.is_newer_than(ended[wait.path]))


def wait_in(metadata: Mapping[str, Any], path: str) -> Wait | None:
    """Return what a step waits for, or None.

    Args:
        metadata: of the newest checkpoint of its run.
        path: the step.
    """
    document = metadata.get(KEY, {}).get(path)
    return None if document is None else waiting.Wait.from_document(path, document)


def due_at(waits: Iterable[Wait]) -> datetime | None:
    """Return when the first of some waits ends by itself; None where none does.

    Args:
        waits: the waits.
    """
    return min((wait.due_at for wait in waits if wait.due_at is not None), default=None)
