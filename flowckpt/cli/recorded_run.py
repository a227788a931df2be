"""A run as a resume finds it: its record, its program, and the inputs that are given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.checkpoint import CheckpointData, Status
from flowckpt.cli.inputs import convert_inputs
from flowckpt.cli.secret_inputs import ask_for_secrets
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_runs import latest_of, opened
from flowckpt.cli.targets import recorded_target, typed_target
from flowckpt.codec.results import plain_tree
from flowckpt.dsl import Workflow
from flowckpt.engine.task_refusal import refuse_task
from flowckpt.secret import MARK
from flowckpt.stores.base import CheckpointStore


@attrs.frozen
class RecordedRun:
    """A run that may be resumed.

    Attributes:
        workflow_id: the run.
        choice: which store it is in.
        store: that store.
        latest: its newest checkpoint.
        workflow: its workflow, loaded.
        target: where the workflow is, as typed; None where the record says it.
        moved_to: the same for the record.
        inputs: the inputs that were given again, by name.
    """

    workflow_id: str
    choice: StoreChoice
    store: CheckpointStore
    latest: CheckpointData
    workflow: Workflow[..., Any]
    target: str | None
    moved_to: Mapping[str, str] | None
    inputs: dict[str, Any]


def recorded_run(
    choice: StoreChoice,
    workflow_id: str,
    *,
    target: str | None = None,
    inputs: Mapping[str, str] | None = None,
    asks_for_secrets: bool = False,
) -> RecordedRun:
    """Read a run and load its program.

    Args:
        choice: the store.
        workflow_id: the run.
        target: where the workflow is now, as typed; where it was at the start, if not given.
        inputs: inputs given again, as text.
        asks_for_secrets: whether secret inputs that are needed again are asked for at a terminal.

    Raises:
        CheckpointNotFoundError: there is no such run.
        TargetError: there is no such workflow.
        InputError: an input is unknown, or does not fit; or it is a task of a checkpoint manager.
    """
    store = opened(choice)
    latest = latest_of(store, workflow_id)  # verified: what it names is imported
    refuse_task(workflow_id, latest)
    moved_to = None
    if target is None:
        workflow = recorded_target(latest.metadata.get("target", {}), workflow_id)
    else:
        workflow, moved_to = typed_target(target)
    values = convert_inputs(workflow, inputs or {})
    if workflow.secret_inputs:
        at_terminal = asks_for_secrets and latest.status is not Status.COMPLETED  # that most likely needs none
        ask_for_secrets(workflow, _needed(workflow, latest), values, at_terminal=at_terminal)
    return RecordedRun(workflow_id, choice, store, latest, workflow, target, moved_to, values)


def _needed(workflow: Workflow[..., Any], latest: CheckpointData) -> list[str]:
    """Return the secret inputs that were given at the start."""
    recorded, defaulted = plain_tree(latest.held_inputs, "inputs"), latest.metadata.get("defaulted", ())
    return [name for name in workflow.secret_inputs if recorded.get(name) == MARK and name not in defaulted]
