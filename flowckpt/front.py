"""The functions that run a workflow with the default engine: for scripts, notebooks and prompts."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import attrs

from flowckpt.core.dsl.workflow import Workflow
from flowckpt.engine.engine import WorkflowEngine
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.result import WorkflowResult


def run_sync(
    workflow: Workflow[..., Any],
    /,
    *,
    workflow_id: str | None = None,
    if_exists: str = "fail",
    options: RunOptions | None = None,
    progress: bool = False,
    **inputs: Any,
) -> WorkflowResult:
    """Start a run with the default engine (file store in `.flowckpt`); see `WorkflowEngine.run_sync`.

    Args:
        workflow: the workflow.
        workflow_id: the run id; a new ULID by default.
        if_exists: what to do if the store already has a run of this id; see `WorkflowEngine.execute`.
        options: tags, policies and more.
        progress: whether to show the progress on standard error, like `flowckpt run`.
        **inputs: the workflow's inputs.
    """
    with _default_engine(workflow, progress=progress) as engine:
        return engine.run_sync(workflow, workflow_id=workflow_id, if_exists=if_exists, options=options, **inputs)


async def run(
    workflow: Workflow[..., Any],
    /,
    *,
    workflow_id: str | None = None,
    if_exists: str = "fail",
    options: RunOptions | None = None,
    progress: bool = False,
    **inputs: Any,
) -> WorkflowResult:
    """Start a run with the default engine, from async code; see `run_sync`."""
    with _default_engine(workflow, progress=progress) as engine:
        return await engine.run(workflow, workflow_id=workflow_id, if_exists=if_exists, options=options, **inputs)


def resume_sync(
    workflow: Workflow[..., Any],
    /,
    *,
    workflow_id: str,
    options: RunOptions | None = None,
    on_code_change: str | None = None,
    on_stale: str | None = None,
    progress: bool = False,
    **inputs: Any,
) -> WorkflowResult:
    """Resume a run with the default engine; see `WorkflowEngine.resume`, and `run_sync` for the progress.

    Args:
        workflow: the workflow of the run.
        workflow_id: the run.
        options: policies and more.
        on_code_change: as in `RunOptions`: `rerun`, `reuse` or `fail`.
        on_stale: the same for evidence, arguments and version tags.
        progress: whether to show the progress.
        **inputs: none, or inputs that must match the recorded ones.
    """
    options = _merge_answers(options, on_code_change=on_code_change, on_stale=on_stale)
    with _default_engine(workflow, progress=progress, is_resume=True) as engine:
        return engine.resume_sync(workflow, workflow_id=workflow_id, options=options, **inputs)


async def resume(
    workflow: Workflow[..., Any],
    /,
    *,
    workflow_id: str,
    options: RunOptions | None = None,
    on_code_change: str | None = None,
    on_stale: str | None = None,
    progress: bool = False,
    **inputs: Any,
) -> WorkflowResult:
    """Resume a run with the default engine, from async code; see `resume_sync`."""
    options = _merge_answers(options, on_code_change=on_code_change, on_stale=on_stale)
    with _default_engine(workflow, progress=progress, is_resume=True) as engine:
        return await engine.resume_run(workflow, workflow_id=workflow_id, options=options, **inputs)


def _merge_answers(options: RunOptions | None, **answers: str | None) -> RunOptions | None:
    chosen: dict[str, Any] = {name: answer for name, answer in answers.items() if answer is not None}
    return attrs.evolve(options or RunOptions(), **chosen) if chosen else options


@contextlib.contextmanager
def _default_engine(
    workflow: Workflow[..., Any], *, progress: bool, is_resume: bool = False
) -> Iterator[WorkflowEngine]:
    if not progress:
        yield WorkflowEngine()
        return
    module = importlib.import_module("flowckpt.cli.progress")  # imported only if shown
    display = module.choose_progress(
        as_events=False, output_type=getattr(workflow, "output_type", Any), restored_attempt=0
    )
    display = module.DelayedProgress(display) if is_resume else display
    display.start()
    try:
        yield WorkflowEngine(listeners=[display.show])
    finally:
        display.stop()
