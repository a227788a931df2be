"""What callers of the engine give: looked at before anything is done with it."""

from __future__ import annotations

from typing import Any

from flowckpt.dsl import Workflow
from flowckpt.errors import InputError, WorkflowDefinitionError
from flowckpt.ids import why_no_run_id


def checked_id(workflow_id: object) -> str:
    """Return the id of a run that may be there.

    Args:
        workflow_id: what was given for it.

    Raises:
        InputError: it is no text, or blank.
    """
    if not isinstance(workflow_id, str) or not workflow_id.strip():
        raise InputError(
            f"a run's id must be text and not blank, got {workflow_id!r:.80} ({type(workflow_id).__name__})",
            parameter="workflow_id",
            remedy="Give a text, or none to get a new one.",
        )
    return workflow_id


def checked_new_id(workflow_id: object) -> str:
    """Return the id of a run that is about to be made.

    Args:
        workflow_id: what was given for it.

    Raises:
        InputError: it can be none.
    """
    if why := why_no_run_id(workflow_id):
        raise InputError(
            f"the id of a run {why}", parameter="workflow_id", remedy="Give another id, or none to get a new one."
        )
    return str(workflow_id)


def check_workflow(workflow: object) -> None:
    """Refuse what is no workflow.

    Args:
        workflow: what was given for one.

    Raises:
        WorkflowDefinitionError: it is none.
    """
    if not isinstance(workflow, Workflow):
        raise WorkflowDefinitionError(
            f"{workflow!r:.120} is no workflow",
            remedy="Decorate the generator function with @workflow and pass it uncalled.",
        )


def needed_workflow(workflow: Workflow[..., Any] | None, workflow_id: str) -> Workflow[..., Any]:
    """Return a workflow that may be left out where nothing is to be undone.

    Args:
        workflow: what was given for it.
        workflow_id: the run.

    Raises:
        InputError: it is missing.
    """
    if workflow is None:
        raise InputError(
            f"only the workflow of run {workflow_id!r} knows what its steps undo, and it was not given",
            parameter="workflow",
            remedy="Give workflow=…, or rolls_back=False to end the run with nothing undone.",
        )
    return workflow
