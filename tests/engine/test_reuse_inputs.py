"""`reuse="inputs"`: behind a stale step, what is called with the same arguments is reused, also after a second crash."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.evidence import file_sha256

INPUTS = RunOptions(reuse="inputs")
ran: list[str] = []
world = {"fails": "", "rows": "3"}


def rows(path: str) -> int:
    ran.append("rows")
    Path(path).write_text(world["rows"])
    return int(world["rows"])


def doubled(number: int) -> int:
    ran.append("doubled")
    return number * 2


def slow(number: int) -> int:
    ran.append("slow")
    return number + 100


def added(left: int, right: int) -> int:
    if world["fails"]:
        raise KeyboardInterrupt if world["fails"] == "ctrl-c" else ValueError("no")
    ran.append("added")
    return left + right


@workflow
def flow(path: str) -> Generator[Any, Any, int]:
    found = yield step("rows").python(rows, path).evidence(file_sha256(path)).checkpoint()
    twice = yield step("doubled").python(doubled, found).checkpoint()
    hours = yield step("slow").python(slow, 7).checkpoint()
    total: int = yield step("added").python(added, twice, hours).checkpoint()
    return total


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    world.update(fails="", rows="3")


def begun(reopen: Callable[[], Any], path: Path) -> None:
    """Leave a run that failed in its last step, and whose first artifact was changed afterwards."""
    world["fails"] = "error"
    assert WorkflowEngine(reopen()).run_sync(flow, workflow_id="run", path=str(path)).status == "failed"
    path.write_text("changed")
    ran.clear()


def test_what_is_called_with_the_same_arguments_is_reused_behind_a_step_that_runs_again(
    reopen: Callable[[], Any], tmp_path: Path
) -> None:
    begun(reopen, tmp_path / "rows")
    world.update(fails="")
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=INPUTS)
    assert (result.output, ran) == (113, ["rows", "added"])
    assert (result.steps.executed, result.steps.restored) == (2, 2)


def test_a_step_that_is_called_with_other_arguments_runs_again_and_others_do_not(
    reopen: Callable[[], Any], tmp_path: Path
) -> None:
    begun(reopen, tmp_path / "rows")
    world.update(fails="", rows="5")
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=INPUTS)
    assert (result.output, ran) == (117, ["rows", "doubled", "added"])


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_resume_that_dies_on_its_way_loses_none_of_what_it_could_still_reuse(
    reopen: Callable[[], Any], tmp_path: Path, crashes: int
) -> None:
    path = tmp_path / "rows"
    begun(reopen, path)
    for number in range(crashes):
        store = reopen()
        plain_save = store.save

        async def save(workflow_id: str, data: Any, plain_save: Any = plain_save) -> None:
            await plain_save(workflow_id, data)
            if data.checkpoint_id == "rows":
                raise SystemExit("the process dies right behind the save of the first step")

        store.save = save
        with pytest.raises(SystemExit):
            WorkflowEngine(store).resume_sync(flow, workflow_id="run", options=INPUTS)
        path.write_text(f"changed again {number}")
        del store.save
    world["fails"] = ""
    ran.clear()
    plan = in_sync(WorkflowEngine(reopen())).plan(flow, workflow_id="run", options=INPUTS)
    decisions = {each.path: str(each.decision) for each in plan.steps}
    assert decisions == {"rows": "rerun", "doubled": "reuse", "slow": "reuse", "added": "new"}
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=INPUTS)
    assert (result.output, ran) == (113, ["rows", "added"])


def test_a_step_that_was_asked_for_again_stays_asked_for_when_the_resume_dies_before_it_ends(
    reopen: Callable[[], Any], tmp_path: Path
) -> None:
    world["fails"] = "error"
    WorkflowEngine(reopen()).run_sync(flow, workflow_id="run", path=str(tmp_path / "rows"))
    ran.clear()
    world["fails"] = ""
    store = reopen()
    plain_save = store.save

    async def save(workflow_id: str, data: Any) -> None:
        await plain_save(workflow_id, data)
        if data.reason == "started":
            raise SystemExit("the process dies before the step that was asked for")

    store.save = save
    with pytest.raises(SystemExit):
        options = RunOptions(reuse="inputs", from_step="doubled")
        WorkflowEngine(store).resume_sync(flow, workflow_id="run", options=options)
    del store.save
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=INPUTS)
    assert (result.output, ran) == (113, ["doubled", "added"])
