"""What a step can know of itself while it runs: its place, its try, and a key for services that do a request once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, current_step, step, workflow
from flowckpt.errors import FlowckptError
from flowckpt.evidence import predicate

seen: list[Any] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()
    world.clear()


def look(*_: Any, **__: Any) -> None:
    now = current_step()
    seen.append((now.workflow_id, now.path, now.attempt, now.tries))


def key(*_: Any, **__: Any) -> str:
    made = current_step().idempotency_key
    seen.append(made)
    return made


async def look_async() -> None:
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.to_thread(look), _look_in_a_task())


async def _look_in_a_task() -> None:
    look()


def asks() -> bool:
    return bool(seen)


PLACES: dict[str, tuple[Any, list[Any]]] = {
    "a step": (step("a").python(look), [("run", "a", 1, 1)]),
    "a step with a time-out, on its thread": (step("a").python(look).timeout(60), [("run", "a", 1, 1)]),
    "an async step, its tasks and their threads": (step("a").python(look_async), [("run", "a", 1, 1)] * 2),
    "an ephemeral step": (step("a").python(look).ephemeral(), [("run", "a", 1, 1)]),
    "a step that is claimed to be done": (step("a").python(look).evidence(predicate(asks)), [("run", "a", 1, 1)]),
}


@pytest.mark.parametrize("door", ["own loop", "application's loop"])
@pytest.mark.parametrize(("made", "expected"), PLACES.values(), ids=PLACES)
def test_a_step_knows_its_run_its_path_its_attempt_and_its_try_in(made: Any, expected: list[Any], door: str) -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield made

    engine = WorkflowEngine(MemoryCheckpointStore())
    if door == "own loop":
        result = engine.run_sync(flow, workflow_id="run")
    else:
        result = asyncio.run(engine.run(flow, workflow_id="run"))
    assert (result.status, seen) == ("completed", expected)


def test_where_no_step_runs_there_is_none_to_be_known() -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("a").python(look)
        current_step()

    with pytest.raises(FlowckptError, match="where no step is running"):
        current_step()
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert isinstance(result.error, FlowckptError)
    assert "Call it inside the function of a step" in str(result.error)
    with pytest.raises(FlowckptError):
        current_step()


def test_attempts_are_counted_over_crashes_so_that_a_step_can_give_up(reopen: Callable[[], Any]) -> None:
    def poisoned() -> str:
        look()
        if current_step().attempt < 4:
            raise SystemExit("the process dies")
        return "given up"

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        yield step("before").python(look).checkpoint()
        return (yield step("poisoned").python(poisoned).retry(2, on=OSError).checkpoint())

    for attempt in range(1, 4):  # the save that would record the failure is the one it dies at
        store = CrashingStore(reopen(), 3 if attempt == 1 else 2, is_after=False)
        engine = WorkflowEngine(store)
        with pytest.raises(SimulatedCrash):
            engine.run_sync(flow, workflow_id="run") if attempt == 1 else engine.resume_sync(flow, workflow_id="run")
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert (result.output, result.attempt) == ("given up", 4)
    assert seen == [("run", "before", 1, 1), *(("run", "poisoned", attempt, 1) for attempt in (1, 2, 3, 4))]


def test_each_try_knows_its_number_and_all_of_them_have_one_key() -> None:
    def flaky(amount: int) -> int:
        look()
        world.setdefault("keys", set()).add(current_step().idempotency_key)
        if current_step().tries < 3:
            raise OSError("down")
        return amount

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("a").python(flaky, 5).retry(5))

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow, workflow_id="run").output == 5
    assert seen == [("run", "a", 1, 1), ("run", "a", 1, 2), ("run", "a", 1, 3)]
    assert len(world["keys"]) == 1


def keys_of(*steps: Any, run: str = "run") -> list[str]:
    @workflow
    def flow() -> Generator[Any, Any, list[str]]:
        made = []
        for each in steps:
            made.append((yield each))
        return made

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow, workflow_id=run)
    return list(result.unwrap())


ONE_REQUEST = {
    "the same again": (step("a").python(key, 1, to="x"), step("a").python(key, 1, to="x")),
    "keywords in another order": (step("a").python(key, to="x", by="y"), step("a").python(key, by="y", to="x")),
    "other modifiers": (step("a").python(key, 1), step("a").python(key, 1).retry(3).at_most_once().checkpoint("b")),
    "an object without a value": (step("a").python(key, object()), step("a").python(key, object())),
}
TWO_REQUESTS = {
    "another argument": (step("a").python(key, 1), step("a").python(key, 2)),
    "another type": (step("a").python(key, 1), step("a").python(key, True)),
    "another number": (step("a").python(key, 1), step("a").python(key, 1.0)),
    "another keyword": (step("a").python(key, to=1), step("a").python(key, by=1)),
    "arguments changed over": (step("a").python(key, 1, 2), step("a").python(key, 2, 1)),
    "another step": (step("a").python(key, 1), step("b").python(key, 1)),
}


@pytest.mark.parametrize(("one", "other"), ONE_REQUEST.values(), ids=ONE_REQUEST)
def test_one_request_has_one_key(one: Any, other: Any) -> None:
    assert keys_of(one) == keys_of(other)


@pytest.mark.parametrize(("one", "other"), TWO_REQUESTS.values(), ids=TWO_REQUESTS)
def test_another_request_has_another_key(one: Any, other: Any) -> None:
    assert keys_of(one) != keys_of(other)


def test_each_use_of_a_step_and_each_run_has_its_own_key_and_it_says_nothing() -> None:
    made = step("a").python(key, "hunter2")
    first, second = keys_of(made, made)
    (elsewhere,) = keys_of(made, run="other")
    assert len({first, second, elsewhere}) == 3
    for each in (first, second, elsewhere):
        assert len(each) == 32
        assert each.replace("-", "").replace("_", "").isalnum()


def is_done(amount: int) -> bool:
    return world.get("done") == amount


def test_who_adopts_and_who_runs_it_again_in_a_later_attempt_ask_with_the_same_key(reopen: Callable[[], Any]) -> None:
    def pay(amount: int) -> str:
        world["done"] = amount
        return key()

    def adopts(amount: int) -> str:
        made = key(amount)
        look()
        return made

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("pay").python(pay, 5).at_most_once().evidence(predicate(is_done, 5)).adopt(adopts))

    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 3, is_after=False)).run_sync(flow, workflow_id="run")
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert result.output == seen[0] == seen[1]
    assert seen[2] == ("run", "pay", 2, 1)
    world.clear()
    again = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=RunOptions(from_step="pay"))
    assert (again.output, again.attempt) == (seen[0], 3)


PROGRAM = """
import os, sys
from flowckpt import FileCheckpointStore, WorkflowEngine, current_step, step, workflow

def pay(amount, to, note):
    print(current_step().attempt, current_step().idempotency_key, flush=True)
    if sys.argv[1] == "run":
        os._exit(9)

@workflow("shop")
def shop():
    yield step("one").python(int, 1).checkpoint()
    yield step("pay").python(pay, 5, to={"b", "a", "c"}, note="thanks")

engine = WorkflowEngine(FileCheckpointStore(sys.argv[2]))
engine.run_sync(shop, workflow_id="run") if sys.argv[1] == "run" else engine.resume_sync(shop, workflow_id="run")
"""


def test_the_key_is_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(PROGRAM)
    told = []
    for number, door in enumerate(("run", "resume")):
        found = subprocess.run(
            [sys.executable, script, door, tmp_path / "store"],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PYTHONHASHSEED": str(number)},
        )
        assert found.returncode == (9 if door == "run" else 0), found.stderr
        told.append(found.stdout.split())
    assert [attempt for attempt, _ in told] == ["1", "2"]
    assert told[0][1] == told[1][1]


@pytest.mark.parametrize(
    ("value", "said"),
    [(9e307, "is beyond 1e+300"), (float("inf"), "is not a finite number"), ("7", "is not a finite number")],
)
def test_a_figure_that_no_sum_can_hold_is_refused_for_what_it_is(value: object, said: str) -> None:
    def measures() -> None:
        current_step().record(size=value)  # type: ignore[arg-type]

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("one").python(measures)

    assert said in str(WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).error)
