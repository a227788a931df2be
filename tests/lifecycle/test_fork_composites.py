"""A fork from a step that is made of steps, or beside others: what a resume from there runs again, its fork runs, too."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.errors import InputError

ran: list[str] = []
is_broken: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    is_broken.clear()


def do(what: str, *given: Any) -> str:
    ran.append(what)
    if what in is_broken:
        raise ValueError(what)
    return f"{what}({','.join(map(str, given))})"


def twice(number: int) -> int:
    ran.append(f"twice {number}")
    return 2 * number


@workflow
def inner(number: int) -> Generator[Any, Any, Any]:
    first = yield step("first").python(do, "first", number).checkpoint()
    return (yield step("last").python(do, "last", first).checkpoint())


@workflow
def whole() -> Generator[Any, Any, Any]:
    start = yield step("start").python(do, "start").checkpoint()
    numbers = yield step("numbers").map(twice, [1, 2, 3], concurrency=1).checkpoint()
    both = yield parallel(
        step("left").python(do, "left", start), step("right").workflow(inner, number=7), concurrency=1
    ).checkpoint()
    child = yield step("child").workflow(inner, number=sum(numbers)).checkpoint()
    return (yield step("end").python(do, "end", *both, child).checkpoint())


PATHS = [
    *("start", "numbers", "numbers/[0]", "numbers/[2]", "parallel", "parallel/left", "parallel/right"),
    *("parallel/right/last", "child", "child/first", "child/last", "end"),
]


def paths(engine: WorkflowEngine, run: str = "run") -> list[str]:
    import asyncio

    latest = asyncio.run(engine.store.load_latest(run))
    assert latest is not None
    return [result.path for result in latest.step_results]


@pytest.mark.parametrize("place", range(len(PATHS)))
@pytest.mark.parametrize("dies", [False, True], ids=["whole", "failed"])
def test_a_fork_from_a_step_runs_what_a_resume_from_it_runs(place: int, dies: bool) -> None:
    if dies:
        is_broken.append("end")
    engine = WorkflowEngine(MemoryCheckpointStore())
    output = engine.run_sync(whole, workflow_id="run").output
    is_broken.clear()
    wanted = next(
        path for path in paths(engine) if path.replace("[left]", "left").replace("[right]", "right") == PATHS[place]
    )
    in_sync(engine).fork("run", new_id="fork", from_step=wanted)
    ran.clear()
    forked = engine.resume_sync(whole, workflow_id="fork")
    of_the_fork = [*ran]
    ran.clear()
    resumed = engine.resume_sync(whole, workflow_id="run", options=RunOptions(from_step=wanted))
    assert of_the_fork == ran
    assert of_the_fork or dies
    assert forked.output == resumed.output and (dies or resumed.output == output)


def test_the_members_beside_an_edited_one_stay_and_what_is_made_of_them_is_made_anew() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(whole, workflow_id="run")
    made = in_sync(engine).fork("run", new_id="fork", workflow=whole, outputs={"numbers/[1]": 40})
    assert made.edited == ("numbers/[1]",)
    assert {"numbers/[0]", "numbers/[2]", "start"} <= {*paths(engine, "fork")}
    ran.clear()
    assert engine.resume_sync(whole, workflow_id="fork").output == "end(left(start()),last(first(7)),last(first(48)))"
    assert ran == ["left", "first", "last", "first", "last", "end"]
    with pytest.raises(InputError, match="does not fit the edits"):
        in_sync(engine).fork("run", workflow=whole, from_step="numbers", outputs={"numbers/[1]": 40})
    both = in_sync(engine).fork("run", workflow=whole, outputs={"numbers/[1]": 40, "numbers/[2]": 5}, new_id="both")
    assert both.edited == ("numbers/[1]", "numbers/[2]")
    ran.clear()
    assert "last(first(47))" in engine.resume_sync(whole, workflow_id="both").output
    assert not [each for each in ran if each.startswith("twice")]
