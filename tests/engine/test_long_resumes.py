"""A resume of a long run: read once, restored without decoding, and told in one line."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.lazy import paused_collector
from flowckpt.engine.history.checkpoints import list_left_behind
from flowckpt.stores import content
from flowckpt.stores.log import image, segment
from flowckpt.testing.store_under_test import checkpoint

STEPS = 3


def found(number: int) -> Any:
    return {"number": number, "names": ["a", {"b": 1.5}], "text": "é", "none": None, "large": 2**63}


def tagged(number: int) -> Any:
    return {"pair": (number, b"x"), "$odd": 1}


seen: list[Any] = []
is_ready = False


def last() -> None:
    if not is_ready:
        raise RuntimeError("stop")


@workflow("long")
def long() -> Generator[Any, Any, int]:
    values: list[Any] = []
    for number in range(STEPS):
        value = yield step("found").python(found, number).checkpoint()
        assert value == found(number), value
        value["names"].append("changed by the workflow")
        values.append(value)
        values.append((yield step("tagged").python(tagged, number).checkpoint()))
    seen[:] = values
    yield step("last").python(last).checkpoint()
    return len(values)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    global is_ready
    is_ready = False
    assert WorkflowEngine(FileCheckpointStore(tmp_path)).run_sync(long, workflow_id="run").status == "failed"
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    numbers: list[int] = []
    read = image.parse_segment

    def counted(data: bytes, *, number: int, **how: Any) -> segment.Segment:
        numbers.append(number)
        return read(data, number=number, **how)

    monkeypatch.setattr(image, "parse_segment", counted)
    return numbers


def test_what_a_workflow_does_with_a_restored_value_does_not_reach_the_record(stopped: Path) -> None:
    global is_ready
    is_ready = True
    first = [*seen]
    engine = WorkflowEngine(FileCheckpointStore(stopped))
    result = engine.resume_sync(long, workflow_id="run")
    assert result.unwrap() == 2 * STEPS and result.steps.restored == 2 * STEPS
    assert seen == first
    with blocking_allowed(True):
        latest = FileCheckpointStore(stopped).runs.load_latest("run")
        assert latest is not None
        outputs = [each.output for each in latest.step_results if each.path != "last"]
    assert outputs == [each for number in range(STEPS) for each in (found(number), tagged(number))]


def test_a_taken_value_is_read_again_by_whoever_looks_at_the_result(stopped: Path) -> None:
    global is_ready
    is_ready = True
    store = FileCheckpointStore(stopped)
    before = store.runs.load_latest("run")
    assert before is not None
    WorkflowEngine(store).resume_sync(long, workflow_id="run")  # it takes the values of the run that was read before
    assert [each.output for each in before.step_results][: 2 * STEPS : 2] == [found(number) for number in range(STEPS)]


def test_a_claim_after_a_read_does_not_parse_the_run_again(stopped: Path, reads: list[int]) -> None:
    store = FileCheckpointStore(stopped)
    latest = store.runs.load_latest("run")
    lease = store.runs.acquire("run")
    assert reads == [1]
    assert lease.latest == latest
    store.runs.release("run")


def test_a_claim_reads_a_run_that_has_moved_on(stopped: Path, reads: list[int]) -> None:
    store, other = FileCheckpointStore(stopped), FileCheckpointStore(stopped)
    latest = store.runs.load_latest("run")
    assert latest is not None
    lease = other.runs.acquire("run")
    other.runs.save("run", checkpoint(sequence=lease.last_sequence + 1, attempt=lease.attempt))
    other.runs.release("run")
    reads.clear()
    now = store.runs.acquire("run")
    assert reads and now.latest is not None and now.latest.sequence > latest.sequence
    store.runs.release("run")


def test_a_read_that_nobody_holds_is_forgotten(stopped: Path, reads: list[int]) -> None:
    store = FileCheckpointStore(stopped)
    assert store.runs.load_latest("run") is not None
    store.runs.acquire("run")
    assert reads == [1, 1]
    store.runs.release("run")


def test_restored_steps_in_a_row_have_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from flowckpt.cli.progress.lines import PlainLines
    from flowckpt.events import StepCompleted, StepRestored, StepsRestored

    lines = PlainLines()
    for event in (
        StepsRestored("one", "fetch[997]", 998),
        StepRestored("one", "fetch[998]", True, 1.0),
        StepRestored("one", "bad", False, 1.0),
        StepCompleted("one", "next", 1.0),
    ):
        lines.show(event)
    assert [line[9:] for line in capsys.readouterr().err.splitlines()] == [
        "1000 steps restored from the record",
        "bad: restored, with its failure",
        "next: done in 1 ms",
    ]


def test_a_small_read_does_not_move_what_the_program_made_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask whether the program froze objects takes a look at each of them: 5 ms of each read for a million."""
    asked: list[bool] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append(True) or 1)
    usual = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        made = [[] for _ in range(6_000)]
        with paused_collector():
            pass
        assert not asked
        with paused_collector():
            made += [[] for _ in range(6_000)]
        assert asked
    finally:
        gc.set_threshold(*usual)


@pytest.fixture
def resumed_often(tmp_path: Path) -> Path:
    stops = iter(range(4))

    def work(number: int) -> int:
        if number % 5 == 4 and next(stops, None) is not None:
            raise RuntimeError("stop")
        return number

    @workflow("often")
    def often() -> Generator[Any, Any, None]:
        for number in range(20):
            yield step("work").python(work, number).checkpoint()

    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    result = engine.run_sync(often, workflow_id="run")
    while result.status == "failed":
        result = engine.resume_sync(often, workflow_id="run")
    return tmp_path


def test_a_check_looks_once_at_each_result_however_many_checkpoints_and_attempts_hold_it(
    resumed_often: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    check_result = content.check_result
    monkeypatch.setattr(content, "check_result", lambda document: (looked.append(document), check_result(document)))
    (finding,) = asyncio.run(FileCheckpointStore(resumed_often).check())
    assert finding.severity == "ok", finding
    failures = 4  # each attempt but the last recorded one, and the next one continued from before it
    assert len(looked) == 20 + failures


def test_lists_of_all_attempts_parse_what_counts_now_once(resumed_often: Path, reads: list[int]) -> None:
    store = FileCheckpointStore(resumed_often)

    async def list_all() -> list[str]:
        latest = await store.load_latest("run")
        assert latest is not None and latest.attempt == 5
        return [each.checkpoint_id for each in await list_left_behind(store, "run")]

    assert asyncio.run(list_all()) == ["@failed", "@failed.2", "@failed.3", "@failed.4"]
    now = [5, 4, 3, 2, 1]
    assert reads == [*now, *(number for attempt in range(4, 0, -1) for number in range(attempt, 0, -1))]
