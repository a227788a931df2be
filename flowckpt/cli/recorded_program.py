"""The program of a recorded run, for commands that can do without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowckpt.checkpoint import CheckpointData
from flowckpt.cli.notices import warn
from flowckpt.cli.stored_runs import latest_of
from flowckpt.cli.targets import recorded_target, typed_target
from flowckpt.dsl import Workflow
from flowckpt.engine.task_refusal import refuse_task
from flowckpt.stores.base import CheckpointStore


def recorded_program(store: CheckpointStore, workflow_id: str, target: str | None) -> Workflow[..., Any]:
    """Load the workflow of a run.

    Args:
        store: where the run lies.
        workflow_id: the run.
        target: where the workflow is now, as typed; None for where the record says.

    Raises:
        CheckpointNotFoundError: there is no such run.
        TargetError: there is no such workflow.
    """
    return _loaded(latest_of(store, workflow_id), workflow_id, target)


def program_at_need(
    store: CheckpointStore, workflow_id: str, target: str | None
) -> Callable[[], Workflow[..., Any] | None]:
    """Return what loads the workflow of a run where its record alone cannot answer, and says so where it cannot.

    Args:
        store: where the run lies.
        workflow_id: the run.
        target: where the workflow is now, as typed; None for where the record says.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    latest = latest_of(store, workflow_id)

    def load() -> Workflow[..., Any] | None:
        try:
            return _loaded(latest, workflow_id, target)
        except Exception as error:
            warn(f"the run's program cannot be loaded, so what only it can answer cannot be checked: {error}")
            return None

    return load


def _loaded(latest: CheckpointData, workflow_id: str, target: str | None) -> Workflow[..., Any]:
    refuse_task(workflow_id, latest)
    if target is not None:
        return typed_target(target)[0]
    return recorded_target(latest.metadata.get("target", {}), workflow_id)
