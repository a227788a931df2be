"""The report of `run --check`, as text and as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from flowckpt.cli.render.terminal import escaped
from flowckpt.core.system.numbers import counted

if TYPE_CHECKING:
    from flowckpt.engine.determinism import DeterminismReport


def determinism_document(report: DeterminismReport) -> dict[str, object]:
    """Return a report as plain JSON."""
    return {
        "workflow_name": report.workflow_name,
        "status": report.status.value,
        "steps": report.steps,
        "is_deterministic": report.is_deterministic,
        "is_other_process_checked": report.is_other_process_checked,
        "note": report.note,
        "differences": [attrs.asdict(each) for each in report.differences],
    }


def determinism_text(report: DeterminismReport) -> str:
    """Return a report as lines for people."""
    where = "in this process and in another one" if report.is_other_process_checked else "in this process"
    lines = [f"{escaped(report.workflow_name)}: {counted(report.steps, 'step')} compared, {where}"]
    for each in report.differences:
        lines.append(f"{escaped(each.where)}: {each.kind} of {escaped(each.path or 'the workflow')} ({each.place})")
        lines += [f"  first: {escaped(each.recorded)}", f"  then:  {escaped(each.now)}"]
    if report.note:
        lines.append(f"note: {escaped(report.note)}")
    lines.append(f"{len(report.differences)} differences" if report.differences else "no difference")
    return "".join(f"{line}\n" for line in lines)
