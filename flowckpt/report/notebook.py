"""Runs, results, plans and lists of runs as HTML for the cell of a notebook.

The HTML must not affect the notebook. Tables are plain elements without styles, so they look like the tables of the
notebook and stay legible if the notebook removes scripts. The waterfall is that of the report, in a frame with its own
origin: its scripts reach neither the page around it nor another cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowckpt.core.records.listing import RunInfo
from flowckpt.core.records.wait import format_moment
from flowckpt.engine.rules.plan import ResumePlan
from flowckpt.engine.values.result import WorkflowResult
from flowckpt.report.document import RunReport, duration_in_words, error_text, plan_sentence, shorten_text
from flowckpt.report.document import read_report as read_report  # noqa: PLC0414 - for callers that show a run
from flowckpt.report.drawing import escape
from flowckpt.report.page import WATERFALL, render_attempts, render_data, render_document, render_steps, render_table

_MOST_DETAILS = 300
"""How many steps show their values: the output of a cell is saved with the notebook."""
_MOST_ROWS = 200
_MOST_LANES, _LARGE = 20, 24
"""The most lanes without scrolling, and the most members that a group shows at first, as in `waterfall.js`."""
_LANE, _TOOLS = 24, 240
"""The heights of a lane, and of everything around the lanes, in pixels."""


def html_fragment(*shown: RunReport | WorkflowResult | ResumePlan | RunInfo | Sequence[RunInfo]) -> str:
    """Return HTML for the output of a notebook's cell: no document, no style or script outside a frame, all text escaped.

    Args:
        shown: the objects to show, one below the other: a `WorkflowResult`, a `RunReport` with its waterfall
            (`read_report` reads one), a `ResumePlan`, a `RunInfo`, or a sequence of these.
    """
    return f'<div class="flowckpt">{"".join(map(_render, shown))}</div>'


def _render(shown: Any) -> str:
    if isinstance(shown, RunReport):
        return _render_report(shown)
    if isinstance(shown, WorkflowResult):
        return _render_result(shown)
    if isinstance(shown, ResumePlan):
        return _render_plan(shown)
    return _render_runs([shown] if isinstance(shown, RunInfo) else shown)


def _render_report(report: RunReport) -> str:
    data = report.data(most_details=_MOST_DETAILS)
    page = render_document(report.workflow_id, f"<main>{WATERFALL}</main>\n{render_data(data)}")
    height = _TOOLS + _LANE * min(_MOST_LANES, _count_drawn_lanes(report))
    frame = (
        f'<iframe srcdoc="{escape(page)}" title="Waterfall of {escape(report.workflow_id)}" sandbox="allow-scripts" '
        f'width="100%" height="{height}" frameborder="0"></iframe>'
    )
    steps = f"<details><summary>Steps as a table</summary>{render_steps(report)}</details>"
    heading = _render_heading(report.latest.workflow_name, report.workflow_id, report.status.value)
    return f"{heading}<p>{escape(report.sentence)}</p>{frame}{render_attempts(report)}{steps}"


def _count_drawn_lanes(report: RunReport) -> int:
    """Return how many lanes the waterfall draws before one is opened."""
    outer: list[int] = []
    members = dict.fromkeys(range(len(report.timeline.lanes)), 0)
    for index, lane in enumerate(report.timeline.lanes):
        del outer[lane.depth :]
        for each in outer:
            members[each] += 1
        outer.append(index)
    drawn, hidden_below = 0, None
    for index, lane in enumerate(report.timeline.lanes):
        if hidden_below is not None and lane.depth > hidden_below:
            continue
        drawn += 1
        hidden_below = lane.depth if members[index] > _LARGE else None
    return drawn


def _render_result(result: WorkflowResult) -> str:
    steps = result.steps
    rows = [
        ["steps", f"{steps.executed} executed, {steps.restored} restored, {steps.failed} failed"],
        ["attempt", f"{result.attempt}, {duration_in_words(result.duration_ms / 1000)}"],
    ]
    if result.generation > 1:
        rows.append(["generation", str(result.generation)])
    if result.status.value == "completed":
        rows.append(["output", shorten_text(repr(result.output))])
    if result.failure is not None:
        rows.append(["error", error_text(result.failure)])
    elif result.error is not None:
        rows.append(["error", shorten_text(f"{type(result.error).__name__}: {result.error}")])
    rows += [["waits", str(wait)] for wait in result.waits]
    if result.undone:
        rows.append(["undone", ", ".join(result.undone[:_MOST_ROWS])])
    if result.save_error is not None:
        rows.append(["not saved", result.save_error.message])
    return f"{_render_heading(result.workflow_name, result.workflow_id, result.status.value)}{render_table((), rows)}"


def _render_plan(plan: ResumePlan) -> str:
    rows = [
        [
            step.path,
            str(step.decision).replace("_", " "),
            "; ".join(map(str, step.reasons)),
            "" if step.duration_ms is None else duration_in_words(step.duration_ms / 1000),
        ]
        for step in plan.steps[:_MOST_ROWS]
    ]
    more = len(plan.steps) - len(rows)
    heading = _render_heading(plan.workflow_name, plan.workflow_id, "plan")
    rendered = render_table(("Step", "A resume would", "Reason", "Took"), rows)
    return f"{heading}<p>{escape(plan_sentence(plan.to_document()))}</p>{rendered}{f'<p>{more:,} more steps</p>' if more > 0 else ''}"


def _render_runs(runs: Sequence[RunInfo]) -> str:
    if not runs:
        return "<p>No runs.</p>"
    rows = [
        [
            info.workflow_id,
            info.workflow_name,
            info.status.value,
            str(info.steps),
            format_moment(info.started_at),
            format_moment(info.updated_at),
            ", ".join(map(str, info.waits)),
        ]
        for info in runs[:_MOST_ROWS]
    ]
    more = len(runs) - len(rows)
    rendered = render_table(("Run", "Workflow", "Status", "Steps", "Started", "Updated", "Waits for"), rows)
    return f"{rendered}{f'<p>{more:,} more runs</p>' if more > 0 else ''}"


def _render_heading(workflow: str, run: str, status: str) -> str:
    return f"<p><strong>{escape(workflow)}</strong> <code>{escape(run)}</code> {escape(status)}</p>"
