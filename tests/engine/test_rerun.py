"""`.on_rerun()`: what an execution left behind is undone before the step is done again, once, and never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import RunOptions, WorkflowEngine, current_step, step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import file_sha256, predicate
from flowckpt.testing import FakeClock

log: list[str] = []
booked: list[int] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.clear()
    booked.clear()
    world.clear()
    monkeypatch.chdir(tmp_path)


def write_a() -> int:
    log.append("a")
    Path("a").write_text("a")
    return 1


def book(amount: int) -> int:
    log.append(f"book {amount}")
    if world.get("fails") == "book":
        raise OSError("fully booked")
    booked.append(amount)
    return amount


def cancel(amount: int) -> None:
    log.append(f"cancel {amount}")
    failing = world.get("cancels that fail", 0)
    if failing:
        world["cancels that fail"] = failing - 1
        raise OSError("no answer")
    booked.remove(amount)


def is_booked(amount: int) -> bool:
    return amount in booked


@workflow
def flow(amount: int = 5) -> Generator[Any, Any, Any]:
    yield step("a").python(write_a).evidence(file_sha256("a")).checkpoint()
    made = step("book").python(book, world.get("amount", amount)).on_rerun(world.get("undo", cancel)).checkpoint()
    for modifier in world.get("modifiers", ()):
        made = modifier(made)
    return (yield made)


def start(store: Any) -> None:
    assert WorkflowEngine(store).run_sync(flow, workflow_id="run").status == "completed"
    Path("a").unlink()
    log.clear()


def resume(store: Any, **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(flow, workflow_id="run", options=RunOptions(**options))


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


def test_it_is_called_with_the_recorded_output_right_before_the_step_runs_again(reopen: Callable[[], Any]) -> None:
    start(reopen())
    assert resume(reopen()).output == 5
    assert (log, booked) == (["a", "cancel 5", "book 5"], [5])
    Path("a").unlink()
    resume(reopen())
    assert (log[3:], booked) == (["a", "cancel 5", "book 5"], [5])


NOT_CALLED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "where all is reused": ({"on_stale": "reuse"}, []),
    "where its step is reused behind one that runs": ({"reuse": "inputs"}, ["a"]),
}


@pytest.mark.parametrize(("options", "calls"), NOT_CALLED.values(), ids=NOT_CALLED)
def test_it_is_not_called(options: dict[str, Any], calls: list[str], reopen: Callable[[], Any]) -> None:
    start(reopen())
    assert resume(reopen(), **options).status == "completed"
    assert (log, booked) == (calls, [5])


def test_it_is_not_called_at_a_first_run_nor_for_a_failure_nor_for_what_was_never_recorded(
    reopen: Callable[[], Any],
) -> None:
    world["fails"] = "book"
    assert WorkflowEngine(reopen()).run_sync(flow, workflow_id="run").status == "failed"
    world.clear()
    assert resume(reopen()).status == "completed"
    with pytest.raises(SimulatedCrash):  # at the save behind its call
        WorkflowEngine(CrashingStore(reopen(), 3, is_after=False)).run_sync(flow, workflow_id="other")
    WorkflowEngine(reopen()).resume_sync(flow, workflow_id="other")
    assert not [line for line in log if line.startswith("cancel")]


MOVED: dict[str, dict[str, Any]] = {
    "its arguments moved": {"amount": 6},
    "its tag moved": {"modifiers": [lambda made: made.version("b")]},
}


@pytest.mark.parametrize("moved", MOVED.values(), ids=MOVED)
def test_it_undoes_the_old_effect_where(moved: dict[str, Any], reopen: Callable[[], Any]) -> None:
    start(reopen())
    write_a()
    world.update(moved)
    amount = moved.get("amount", 5)
    assert resume(reopen()).output == amount
    assert (log, booked) == (["a", "cancel 5", f"book {amount}"], [amount])


@pytest.mark.parametrize("at", [1, 2])
def test_a_rerun_that_dies_before_it_came_to_the_step_does_not_forget_what_to_undo(
    at: int, reopen: Callable[[], Any]
) -> None:
    start(reopen())
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            WorkflowEngine(CrashingStore(reopen(), at, is_after=True)).resume_sync(flow, workflow_id="run")
        Path("a").unlink(missing_ok=True)
    assert booked == [5]
    log.clear()
    assert resume(reopen()).output == 5
    assert (log, booked) == (["a", "cancel 5", "book 5"], [5])
    assert "superseded" not in latest(reopen()).metadata


def test_where_it_fails_the_step_fails_undone_and_is_undone_at_the_next_resume(reopen: Callable[[], Any]) -> None:
    start(reopen())
    world["cancels that fail"] = 2
    for _ in range(2):
        result = resume(reopen())
        assert isinstance(result.error, StepFailedError)
        assert result.error.failed_with(OSError)
        recorded = latest(reopen())
        assert "It was raised by .on_rerun(), which runs before a rerun of step 'book'." in recorded.error.traceback
    assert (log, booked) == (["a", "cancel 5", "cancel 5"], [5])
    assert resume(reopen()).output == 5
    assert (log[3:], booked) == (["cancel 5", "book 5"], [5])
    log.clear()
    assert resume(reopen()).steps.restored == 2
    assert log == []


def test_where_it_fails_the_next_try_begins_with_it(reopen: Callable[[], Any]) -> None:
    world["modifiers"] = [lambda made: made.retry(3, backoff=1)]
    start(reopen())
    world["cancels that fail"] = 1
    clock = FakeClock()
    result = WorkflowEngine(reopen(), clock=clock).resume_sync(flow, workflow_id="run")
    assert (result.output, clock.slept) == (5, [1])
    assert (log, booked) == (["a", "cancel 5", "cancel 5", "book 5"], [5])


def test_a_step_that_fails_after_it_is_not_undone_twice(reopen: Callable[[], Any]) -> None:
    world["modifiers"] = [lambda made: made.retry(2)]
    start(reopen())
    world["fails"] = "book"
    assert resume(reopen()).status == "failed"
    assert (log, booked) == (["a", "cancel 5", "book 5", "book 5"], [])
    world.pop("fails")
    assert resume(reopen()).output == 5
    assert (log[4:], booked) == (["book 5"], [5])


def _once(made: Any) -> Any:
    return made.at_most_once()


def _seen(made: Any) -> Any:
    return made.evidence(predicate(is_booked, world.get("amount", 5)))


ONCE = [  # modifiers, the world then, what is called then
    ([_once, _seen], {}, ["a"]),
    ([_once, _seen], {"amount": 6}, ["a", "cancel 5", "book 6"]),
    ([_once, _seen], {"amount": 6, "cancels that fail": 1}, ["a", "cancel 5", "cancel 5", "book 6"]),
    ([_once], {"amount": 6}, ["a", "cancel 5", "book 6"]),
]


@pytest.mark.parametrize(("modifiers", "then", "calls"), ONCE)
def test_at_most_once_comes_first_and_what_is_another_effect_is_undone_before(
    modifiers: list[Any], then: dict[str, Any], calls: list[str], reopen: Callable[[], Any]
) -> None:
    world["modifiers"] = [*modifiers, lambda made: made.retry(3)]
    start(reopen())
    world.update(then)
    result = resume(reopen())
    assert (result.status, log) == ("completed", calls)
    assert booked == [world.get("amount", 5)]


def test_a_step_that_must_not_be_done_twice_and_could_not_be_undone_was_not_begun(reopen: Callable[[], Any]) -> None:
    world["modifiers"] = [_once, _seen]
    start(reopen())
    world.update({"amount": 6, "cancels that fail": 1})
    assert resume(reopen()).status == "failed"
    assert (latest(reopen()).in_flight, booked) == ((), [5])
    assert resume(reopen()).output == 6
    assert (log, booked) == (["a", "cancel 5", "cancel 5", "book 6"], [6])


@attrs.frozen
class Booking:
    number: int


def test_it_gets_the_value_that_the_generator_got(reopen: Callable[[], Any]) -> None:
    def typed() -> Booking:
        return Booking(len(log))

    @workflow
    def one() -> Generator[Any, Any, None]:
        yield step("a").python(typed).version(world["tag"]).on_rerun(lambda old: log.append(repr(old))).checkpoint()

    for tag in ("1", "2", "3"):
        world["tag"] = tag
        engine = WorkflowEngine(reopen())
        done = engine.run_sync(one, workflow_id="run") if tag == "1" else engine.resume_sync(one, workflow_id="run")
        assert done.status == "completed"
    assert log == ["Booking(number=0)", "Booking(number=1)"]


def test_it_may_be_async_and_is_told_of_the_call_that_it_undoes(reopen: Callable[[], Any]) -> None:
    keys: list[str] = []

    def books(amount: int) -> int:
        keys.append(current_step().idempotency_key)
        return amount

    async def undoes(amount: int) -> None:
        await asyncio.sleep(0)
        keys.append(current_step().idempotency_key)
        log.append(f"{current_step().path} in attempt {current_step().attempt}")

    @workflow
    def one() -> Generator[Any, Any, None]:
        yield step("book").python(books, world["amount"]).on_rerun(undoes).checkpoint()

    world["amount"] = 5
    WorkflowEngine(reopen()).run_sync(one, workflow_id="run")
    world["amount"] = 6
    WorkflowEngine(reopen()).resume_sync(one, workflow_id="run")
    assert log == ["book in attempt 2"]
    assert keys[0] == keys[1] != keys[2]
