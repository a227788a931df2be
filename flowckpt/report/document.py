"""The report of a run as a value: the content of its page, without markup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.records import CheckpointData, Status, StepError, StepResult
from flowckpt.core.records.checkpoint import recorded_claims
from flowckpt.core.records.generation import number_of
from flowckpt.core.records.result import COMPOSITES, sum_figures
from flowckpt.core.records.wait import Wait, open_waits
from flowckpt.core.system.numbers import number_text, pluralize
from flowckpt.engine.rules.plan import Decision
from flowckpt.engine.run.lease import require_run
from flowckpt.engine.run.live import LiveNote, read_live
from flowckpt.engine.run.resumption import read_started_steps
from flowckpt.evidence.claims import redact_text
from flowckpt.maintenance.attempts import Attempt, Standing, read_attempts
from flowckpt.report.comparison import Comparison
from flowckpt.report.graph import Graph, make_run_graph
from flowckpt.report.timeline import AttemptSpan, Lane, LaneState, Outcome, Timeline, make_timeline
from flowckpt.stores.base import Ability, StoreBase

_MOST_DETAILS = 3_000
"""How many steps show their arguments, output and claims: a report of 100,000 steps stays below 5 MB."""
_MOST_LIVE = 3
_MOST_VALUE, _MOST_TRACEBACK, _MOST_TEXT = 2_000, 6_000, 1_500_000
_STATES = [*LaneState]
RUNS = frozenset(map(str, (Decision.RERUN, Decision.NEW, Decision.INTERRUPTED, Decision.IN_DOUBT)))
"""The decisions of a plan by which a step runs."""
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


@attrs.frozen
class RunReport:
    """The content of a run's page.

    Attributes:
        workflow_id: the run.
        latest: its newest checkpoint.
        status: its status.
        timeline: its attempts and steps.
        waits: its waits.
        graph: its steps and the outputs passed between them.
        comparison: its differences from earlier runs.
        plan_note: the plan of a resume in one line, or why no plan was made; empty for a run that ended.
        made_at: when the report was made, aware and in UTC.
        live: the running steps, or those that ran when the process died, if the store knows them.
    """

    workflow_id: str
    latest: CheckpointData
    status: Status
    timeline: Timeline
    waits: Sequence[Wait]
    graph: Graph
    comparison: Comparison
    plan_note: str
    made_at: datetime
    live: LiveNote | None = None

    @property
    def sentence(self) -> str:
        """The run in two or three sentences."""
        parts = [
            _describe_end(self),
            _describe_generation(self),
            _describe_crashes(self.timeline),
            _describe_reuse(self.timeline),
            _describe_running_steps(self),
        ]
        return " ".join(part for part in parts if part)

    def data(self, *, most_details: int = _MOST_DETAILS) -> dict[str, Any]:
        """Return the data for the scripts of the page as plain JSON, in columns rather than objects to save space.

        Args:
            most_details: how many steps show their arguments, output and claims.
        """
        lanes, attempts = self.timeline.lanes, self.timeline.attempts
        starts = [each.started_at for each in attempts] or [self.latest.saved_at]
        epoch = min([*starts, *(each.started_at for each in lanes if each.started_at is not None)])

        def since(moment: datetime | None) -> int:
            return -1 if moment is None else round((moment - epoch).total_seconds() * 1000)

        kinds = [*dict.fromkeys(each.kind for each in lanes)]
        places = {kind: index for index, kind in enumerate(kinds)}
        return {
            "epoch": round(epoch.timestamp() * 1000),
            "attempts": [
                {
                    "number": each.number,
                    "start": since(each.started_at),
                    "end": since(each.ended_at),
                    "outcome": each.outcome.value,
                }
                for each in attempts
            ],
            "states": [state.value for state in _STATES],
            "kinds": kinds,
            "lanes": {
                "name": [_shorten_name(each.path.rpartition("/")[2]) for each in lanes],
                "depth": [each.depth for each in lanes],
                "start": _encode_differences([since(each.started_at) for each in lanes]),
                "duration": [round(each.duration_ms, 1 if each.duration_ms < 100 else None) for each in lanes],
                "attempt": [each.attempt for each in lanes],
                "state": [_STATES.index(each.state) for each in lanes],
                "kind": [places[each.kind] for each in lanes],
                "tries": {index: each.tries for index, each in enumerate(lanes) if each.tries > 1},
                "critical": _encode_ranges([index for index, each in enumerate(lanes) if each.is_critical]),
            },
            "details": self._collect_details(most_details),
            "figures": sum_figures(self.latest.step_results),
        }

    def _collect_details(self, most: int) -> dict[int, dict[str, Any]]:
        """Return the details of steps by lane: failures first, up to a total size."""
        lanes = [(index, each) for index, each in enumerate(self.timeline.lanes) if each.result is not None]
        lanes.sort(key=lambda each: (each[1].state is not LaneState.FAILED, each[1].depth, each[0]))
        left = _MOST_TEXT
        details: dict[int, dict[str, Any]] = {}
        for index, lane in lanes[:most]:
            assert lane.result is not None
            details[index] = detail = _make_detail(lane.result)
            left -= sum(len(str(value)) for value in detail.values())
            if left < 0:
                break
        return details


def make_report(  # noqa: PLR0913 - one parameter for each recorded part of a run
    workflow_id: str,
    latest: CheckpointData,
    status: Status,
    attempts: Sequence[Attempt],
    *,
    waits: Sequence[Wait] = (),
    begun: Sequence[str] = (),
    seen: datetime | None = None,
    live: LiveNote | None = None,
    comparison: Comparison | None = None,
    decisions: Mapping[str, tuple[str, str]] | None = None,
    plan_note: str = "",
    now: datetime | None = None,
) -> RunReport:
    """Return the report of a run.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.
        status: its status.
        attempts: the records of its attempts.
        waits: its waits.
        begun: the steps that the last attempt started since its last checkpoint, if the store knows them.
        seen: the last heartbeat of a process that died, if the store knows it.
        live: the running steps, or those that ran when the process died, if the store knows them.
        comparison: its differences from earlier runs.
        decisions: the decision of a plan for each step, and the reason, by path.
        plan_note: the plan in one line, or why there is none.
        now: the time of the report.
    """
    now = now or datetime.now(UTC)
    timeline = make_timeline(attempts, status, waits, begun=begun, seen=seen, now=now)
    graph = make_run_graph(latest.workflow_name, timeline.lanes, decisions)
    return RunReport(
        workflow_id, latest, status, timeline, waits, graph, comparison or Comparison(), plan_note, now, live
    )


_MEMBER = re.compile(r"\[(0|[1-9][0-9]{0,8})\]")


def _shorten_name(name: str) -> str | int:
    """Return the name of a lane, or the number of a numbered member of a map: 7 for `[7]`."""
    member = _MEMBER.fullmatch(name)
    return int(member[1]) if member else name


def _encode_differences(moments: Sequence[int]) -> list[int | None]:
    """Return each moment as the difference from the previous one; None for an unknown moment (below 0)."""
    last, differences = 0, []
    for moment in moments:
        differences.append(None if moment < 0 else moment - last)
        last = last if moment < 0 else moment
    return differences


def _encode_ranges(indices: Sequence[int]) -> list[int]:
    """Return ascending numbers as ranges: alternately a start and a length."""
    ranges: list[int] = []
    for index in indices:
        if ranges and index == ranges[-2] + ranges[-1]:
            ranges[-1] += 1
        else:
            ranges += [index, 1]
    return ranges


async def read_report(store: StoreBase, workflow_id: str) -> RunReport:
    """Return the report of a run in a store, without a comparison and a plan.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: its record is damaged.
    """
    latest = require_run(workflow_id, await store.load_latest(workflow_id))
    checkpoints = await store.list_checkpoints(workflow_id)
    if store.has(Ability.ATTEMPTS):
        attempts = await read_attempts(store, workflow_id, latest, checkpoints)
    else:  # the store keeps only the current history
        counting = [(each, Standing.COUNTS) for each in latest.step_results]
        references = [(each, Standing.COUNTS) for each in checkpoints]
        attempts = [Attempt(latest.attempt, latest, references, counting)]
    info = await store.describe_run(workflow_id)
    status = latest.status if info is None else info.status
    waits = () if status is Status.COMPLETED else open_waits(latest.metadata, latest.step_results)
    begun = await read_started_steps(store, workflow_id, latest)
    seen = await store.last_seen(workflow_id, latest.attempt) if status is Status.CRASHED else None
    live = await read_live(store, workflow_id, status, latest.attempt, latest.metadata, latest.step_results)
    return make_report(workflow_id, latest, status, attempts, waits=waits, begun=begun, seen=seen, live=live)


# --- sentences --------------------------------------------------------------------------------------------------------


def duration_in_words(seconds: float) -> str:
    """Return an approximate duration: `14 ms`, `0.4 s`, `12 s`, `41 min`, `2.5 h`, `3 days`."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.1f} h".replace(".0 h", " h")
    return f"{seconds / _DAY:.0f} days"


def plan_sentence(plan: Mapping[str, Any]) -> str:
    """Return the document of a plan as one sentence."""
    if plan["stops"]:
        return f"A resume would stop: {plan['stops']}"
    decisions = [step["decision"] for step in plan["steps"]]
    runs = pluralize(sum(map(RUNS.__contains__, decisions)), "step")
    more = f"; the plan ends here: {plan['ends_at']}" if plan["ends_at"] else ""
    return f"A resume would reuse {pluralize(decisions.count('reuse'), 'result')} and run {runs}{more}."


def planned_steps(plan: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the decision of a plan for each step by path, with the reasons if the step would run."""
    decisions = {}
    for step in plan["steps"]:
        decision = step["decision"]
        reasons = [f"{each['kind']}: {each['detail']}" for each in step["reasons"]] if decision in RUNS else []
        if decision == Decision.INTERRUPTED:  # the state of a lane has the same name, but is not a decision
            decision, reasons = str(Decision.RERUN), reasons or ["it was interrupted"]
        decisions[step["path"]] = decision, "; ".join(reasons)
    return decisions


def _describe_end(report: RunReport) -> str:
    timeline, error = report.timeline, report.latest.error
    working = sum(each.outcome is not Outcome.ROLLED_BACK for each in timeline.attempts)  # a rollback executes nothing
    at = f" in {error.path}" if error is not None and error.path else ""
    start = {
        Status.COMPLETED: "Completed",
        Status.FAILED: f"Failed{at}",
        Status.CANCELLED: "Cancelled",
        Status.SUSPENDED: "Suspended",
        Status.RUNNING: "Running",
        Status.CRASHED: "Crashed",
    }[report.status]
    worked, elapsed = timeline.worked_ms / 1000, timeline.elapsed_ms / 1000
    word = "for" if report.status is Status.RUNNING else "after"
    text = f"{start} {word} {duration_in_words(worked)}"
    if len(timeline.attempts) > 1:
        text += f" of work in {pluralize(working, 'attempt')}"
        if elapsed > 1.05 * worked:
            text += f" over {duration_in_words(elapsed)}"
    if report.status is Status.SUSPENDED and report.waits:
        more = f" (and {len(report.waits) - 1} more)" if len(report.waits) > 1 else ""
        text += f"; {report.waits[0]}{more}"
    return f"{text}."


def _describe_generation(report: RunReport) -> str:
    number = number_of(report.latest.metadata)
    return f"This is generation {number}; the steps of earlier ones are not kept." if number > 1 else ""


def _describe_crashes(timeline: Timeline) -> str:
    places = [_describe_place(span) for span in timeline.attempts if span.outcome is Outcome.CRASHED]
    if not places:
        return ""
    times = {1: "once", 2: "twice"}.get(len(places), f"{len(places)} times")
    listed = ", ".join(places[:4]) + (", …" if len(places) > 4 else "")
    return f"Crashed {times} ({listed})."


def _describe_running_steps(report: RunReport) -> str:
    """Return the running steps with their progress, or those that ran when the process died."""
    live = report.live
    if live is None or not live.steps:
        return ""
    until = report.made_at if live.is_running else live.at
    parts = []
    for step in live.steps[:_MOST_LIVE]:
        progress = f" ({step.said})" if step.said else ""
        parts.append(f"{step.path} for {duration_in_words(max(0.0, (until - step.since).total_seconds()))}{progress}")
    more = len(live.steps) - len(parts) + live.more
    lead = "Running now" if live.is_running else "In flight when the process died"
    return f"{lead}: {'; '.join(parts)}{f'; and {more} more' if more else ''}."


def _describe_place(span: AttemptSpan) -> str:
    """Return where an attempt crashed: in the step that started last, or after the one that ended last."""
    running = span.running
    if not running:
        return f"after {span.last_path}" if span.last_path else "before its first step ended"
    return f"in {running[-1]}{f' and {len(running) - 1} more' if len(running) > 1 else ''}"


def _describe_reuse(timeline: Timeline) -> str:
    executed, restored = timeline.counted(LaneState.EXECUTED), timeline.counted(LaneState.RESTORED)
    failed = timeline.counted(LaneState.FAILED)
    left = timeline.counted(LaneState.LEFT_BEHIND, succeeded=True)  # a failure that was tried again is not a loss
    parts = [f"{pluralize(restored, 'result')} reused"] if restored else []
    parts.append(f"{pluralize(executed, 'step')} executed")
    undone = timeline.counted(LaneState.UNDONE)
    newest = timeline.attempts[-1].number if timeline.attempts else 0
    unsaved = sum(
        each.state is LaneState.UNSAVED and each.attempt == newest and each.kind != "group" for each in timeline.lanes
    )
    parts += [f"{unsaved} not saved"] if unsaved else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{undone} undone"] if undone else []
    parts += [f"{pluralize(left, 'result')} no longer {'count' if left > 1 else 'counts'}"] if left else []
    return f"{', '.join(parts)}."


# --- values -----------------------------------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Return a recorded value as shortened JSON text, without decoding it into the user's types."""
    return shorten_text(codec.dumps(plain_tree(value, "value")))


def shorten_text(text: str) -> str:
    """Return the start of a long text, with its length."""
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}… ({len(text):,} characters)"


def _make_detail(result: StepResult) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    if result.step_type == "command" and result.success:
        detail |= _read_command_output(plain_tree(result.held_output, "output"))
    elif result.step_type not in COMPOSITES and result.success:
        detail["output"] = format_value(result.held_output)
    if result.arguments:
        detail["arguments"] = {name: _argument_text(value) for name, value in result.arguments.items()}
    if result.error is not None:
        detail["error"] = error_text(result.error)
        detail["traceback"] = result.error.traceback[-_MOST_TRACEBACK:]
    if result.evidence is not None and (claims := recorded_claims(result.evidence)):
        detail["claims"] = [
            [
                redact_text(str(claim.get("description", ""))) if isinstance(claim, Mapping) else "",
                str(answer.get("status", "")),
                str(answer.get("error", "") or ""),
            ]
            for claim, answer in claims
        ]
    for name in ("function", "location", "version"):
        if value := getattr(result, name):
            detail[name] = value
    if result.figures:
        detail["figures"] = {name: number_text(value) for name, value in result.figures.items()}
    if result.source:
        detail["taken from"] = f"step {result.source['path']} of run {result.source['workflow_id']}"
    if result.marks:
        detail["marks"] = ", ".join(mark.replace("_", " ") for mark in result.marks)
    return detail


def _read_command_output(tree: Any) -> dict[str, str]:
    """Return the end of a command's output, and its exit code."""
    if not isinstance(tree, Mapping):
        return {}
    fields = {"exit code": str(tree.get("exit_code", ""))}
    for name in ("stdout", "stderr"):
        text = str(tree.get(name, ""))
        fields[name] = text if len(text) <= _MOST_TRACEBACK else f"… {text[-_MOST_TRACEBACK:]}"
    return {name: text for name, text in fields.items() if text}


def _argument_text(value: Any) -> str:
    return (
        f"digest {value}"
        if isinstance(value, str) and value != "?"
        else "not comparable"
        if value == "?"
        else repr(value)
    )


def error_text(error: StepError) -> str:
    """Return an error on one line: its type and its message."""
    return f"{error.type.rpartition('.')[2]}: {error.message}"[:_MOST_VALUE]


def lane_result_text(lane: Lane) -> str:
    """Return the state of a lane as text, with its tries."""
    return f"{lane.state.value}, {lane.tries} tries" if lane.tries > 1 else lane.state.value
