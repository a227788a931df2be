"""The lanes of a run: what was interrupted and what was undone has a lane of its own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from flowckpt import MemoryCheckpointStore, WorkflowEngine, parallel, step, workflow
from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.engine.rules.crash_loop import KEY as DEATHS
from flowckpt.maintenance.attempts import Attempt, Standing
from flowckpt.report.document import make_report, read_report
from flowckpt.report.timeline import make_timeline

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def result(path, attempt, start, seconds):
    return StepResult(path, started_at=at(start), duration_ms=1000.0 * seconds, attempt=attempt)


def attempt(number, results, saved, *, made, reason=Reason.STEP, in_flight=(), metadata=None):
    data = CheckpointData(
        f"c{number}", "w", "sha256:v1:0", results, at(saved), attempt=number, reason=reason, in_flight=in_flight,
        metadata=metadata or {},
    )  # fmt: skip
    counting = [(each, Standing.COUNTS) for each in made]
    return Attempt(number, data, [(CheckpointRef.of("run", data), Standing.COUNTS)], counting)


def shown(timeline):
    return [(each.path, each.state.value, each.attempt, each.duration_ms) for each in timeline.lanes]


def test_a_killed_step_has_a_lane_in_the_attempt_that_died():
    a, b = result("a", 1, 0, 1), result("b", 2, 10, 1)
    first = attempt(1, [a], 1, made=[a])
    second = attempt(
        2, [a, b], 11, made=[b], reason=Reason.COMPLETED,
        metadata={DEATHS: {"count": 1, "paths": ["b"], "since": "", "results": 1, "partial": ""}},
    )  # fmt: skip
    found = make_timeline([first, second], Status.COMPLETED)
    assert shown(found) == [("a", "restored", 1, 1000.0), ("b", "interrupted", 1, 0.0), ("b", "executed", 2, 1000.0)]
    assert found.attempts[0].in_flight == ("b",)


def test_the_last_attempt_shows_what_the_store_noted():
    a = result("a", 1, 0, 1)
    first = attempt(1, [a], 1, made=[a])
    crashed = make_timeline([first], Status.CRASHED, begun=["a", "b"])
    assert shown(crashed)[1] == ("b", "interrupted", 1, 0.0)
    running = make_timeline([first], Status.RUNNING, begun=["b"], now=at(61))
    assert shown(running)[1] == ("b", "running", 1, 60_000.0)


def test_a_killed_step_lasts_until_the_last_sign_of_life():
    a, b = result("a", 1, 0, 1), result("b", 2, 90, 1)
    first = attempt(1, [a], 1, made=[a])
    crashed = make_timeline([first], Status.CRASHED, begun=["b"], seen=at(61))
    assert shown(crashed)[1] == ("b", "interrupted", 1, 60_000.0) and crashed.worked_ms == 61_000.0
    said = {"count": 1, "paths": ["b"], "since": "", "results": 1, "partial": "", "seen": "2026-01-01T00:01:01Z"}
    second = attempt(2, [a, b], 91, made=[b], reason=Reason.COMPLETED, metadata={DEATHS: said})
    resumed = make_timeline([first, second], Status.COMPLETED)
    assert shown(resumed)[1] == ("b", "interrupted", 1, 60_000.0) and resumed.attempts[0].ended_at == at(61)


def test_what_ended_before_the_killed_step_was_not_saved():
    a = result("a", 1, 0, 1)
    first = attempt(1, [a], 1, made=[a])
    begun = ["b", "all/[0]", "all/[1]", "fit/train", "fit/test/[left]", "fit/test/[right]"]
    crashed = make_timeline([first], Status.CRASHED, begun=begun, seen=at(2))
    states = {each.path: each.state.value for each in crashed.lanes}
    assert states == {
        "a": "executed", "b": "unsaved", "all": "unsaved", "all/[0]": "unsaved", "all/[1]": "unsaved",
        "fit": "interrupted", "fit/train": "unsaved", "fit/test": "interrupted",
        "fit/test/[left]": "interrupted", "fit/test/[right]": "interrupted",
    }  # fmt: skip
    running = make_timeline([first], Status.RUNNING, begun=["b", "c/[0]"], now=at(2))
    assert [each.state.value for each in running.lanes] == ["executed", "unsaved", "running", "running"]
    latest = first.last
    said = make_report("run", latest, Status.CRASHED, [first], begun=begun, seen=at(2)).sentence
    assert said == "Crashed after 2.0 s. Crashed once (in fit/test/[right] and 1 more). 1 step executed, 4 not saved."


def test_a_stopped_step_shows_the_time_that_is_certain():
    a = result("a", 1, 0, 1)
    stopped = attempt(1, [a], 41, made=[a], reason=Reason.SUSPENDED, in_flight=("b",))
    assert shown(make_timeline([stopped], Status.SUSPENDED))[1] == ("b", "interrupted", 1, 40_000.0)


def test_an_undone_step_and_its_undoing_are_lanes_of_their_own():
    @workflow("booking")
    def booking():
        yield step("book").python(int, "1").rollback(str).checkpoint()
        yield step("pay").python(int, "x")

    store = MemoryCheckpointStore()
    WorkflowEngine(checkpoint_store=store).run_sync(booking, workflow_id="one")
    report = asyncio.run(read_report(store, "one"))
    found = [(each.path, each.state.value, each.kind) for each in report.timeline.lanes]
    assert found == [("book", "undone", "python"), ("book", "undo", "rollback"), ("pay", "failed", "python")]
    assert report.sentence.endswith("0 steps executed, 1 failed, 1 undone.")
    assert [node.path for node in report.graph.nodes] == ["book", "pay"]


def test_a_member_that_was_stopped_has_not_failed():
    @workflow("racing")
    def racing():
        yield parallel(step("fast").python(int, "1"), step("late").wait("never"), min_success=1)

    store = MemoryCheckpointStore()
    assert WorkflowEngine(checkpoint_store=store).run_sync(racing, workflow_id="one").status is Status.COMPLETED
    report = asyncio.run(read_report(store, "one"))
    states = {each.path: each.state.value for each in report.timeline.lanes}
    assert states == {"parallel": "executed", "parallel/[fast]": "executed", "parallel/[late]": "stopped"}
    assert report.sentence.endswith("2 steps executed.")
