"""What is undone, and what stays in doubt, when processes die around it and code changes in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest

from flowckpt import RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.identity import call
from flowckpt.core.system.functions import PerFunction
from flowckpt.errors import StepInDoubtError
from flowckpt.evidence import predicate, register_predicate

account: list[int] = []
log: list[str] = []
world: dict[str, Any] = {}


class Died(BaseException):
    """Stands for the death of the process at this place: nothing is saved after it."""


def die() -> None:
    world["is_dead"] = True
    raise Died


@register_predicate
def is_paid() -> bool:
    return bool(account)


def prepare(amount: int) -> int:
    log.append("prepare")
    return amount


def pay(amount: int) -> int:
    if world.get("dies") == "before paying":
        die()
    account.append(amount)
    log.append(f"pay {amount}")
    return amount


def refund(amount: int) -> None:
    if world.get("dies") == "before undoing":
        die()
    if amount in account:
        account.remove(amount)
    log.append(f"refund {amount}")
    if world.get("dies") == "after undoing":
        die()


@workflow
def shop() -> Generator[Any, Any, int]:
    amount = yield step("prepare").python(prepare, world["price"]).checkpoint()
    if world.get("pays", True):
        yield step("pay").python(pay, amount).at_most_once().evidence(predicate(is_paid)).on_rerun(refund)
    yield step("last").python(prepare, 0).checkpoint()
    return sum(account)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    account.clear()
    log.clear()
    world.clear()
    world["price"] = 100


def deadly(store: Any) -> Any:
    """Make the store refuse every save once the process is "dead", as nothing is saved by a dead one."""
    plain = store.save

    async def save(workflow_id: str, data: Any) -> None:
        if world.get("is_dead"):
            raise Died
        await plain(workflow_id, data)

    store.save = save
    return store


def dies(store: Any) -> None:
    """Resume the run, or start it, in a process that dies on its way."""
    store = deadly(store)
    engine = WorkflowEngine(store)
    with pytest.raises(Died):
        if account or log:
            engine.resume_sync(shop, workflow_id="run")
        else:
            engine.run_sync(shop, workflow_id="run")
    del world["dies"], world["is_dead"], store.save


@pytest.mark.parametrize("place", ["before undoing", "after undoing"])
def test_a_process_that_dies_around_an_undo_never_takes_the_old_effect_for_the_new_one(
    reopen: Callable[[], Any], place: str
) -> None:
    assert WorkflowEngine(reopen()).run_sync(shop, workflow_id="run").output == 100
    world.update(price=120, dies=place)
    dies(reopen())
    assert account == ([100] if place == "before undoing" else [])
    result = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    assert (result.output, account) == (120, [120])


def test_a_process_that_dies_after_the_undo_and_before_the_new_effect_is_known_to_have_done_neither(
    reopen: Callable[[], Any],
) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    world.update(price=120, dies="before paying")
    dies(reopen())
    log.clear()
    result = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    assert (result.output, account, log) == (120, [120], ["pay 120", "prepare"])


def test_a_doubt_outlives_code_that_no_longer_yields_the_step(reopen: Callable[[], Any]) -> None:
    world["dies"] = "before paying"
    dies(reopen())
    world["pays"] = False
    engine = WorkflowEngine(reopen())
    ended = engine.resume_sync(shop, workflow_id="run")  # runs the other steps, and finds out at the end
    assert isinstance(ended.error, StepInDoubtError) and ended.error.path == "pay"
    with pytest.raises(StepInDoubtError, match="no longer yields it"):
        engine.resume_sync(shop, workflow_id="run")
    account.append(100)  # as somebody finds out by and by: the payment came through
    world["pays"] = True
    result = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(from_step="last"))
    assert (account, result.status) == ([100], "completed")


def test_to_ask_for_a_step_again_settles_no_doubt_about_it(reopen: Callable[[], Any]) -> None:
    world["dies"] = "before paying"
    dies(reopen())
    account.append(100)  # the effect came through before the process died
    engine = WorkflowEngine(reopen())
    plan = in_sync(engine).plan(shop, workflow_id="run", options=RunOptions(from_step="pay"))
    assert "proves that it was done" in str(plan.step("pay").reasons[0])
    assert engine.resume_sync(shop, workflow_id="run", options=RunOptions(from_step="pay")).status == "completed"
    assert account == [100]


def test_a_run_that_is_stolen_does_not_take_not_done_yet_for_not_done(reopen: Callable[[], Any]) -> None:
    world["dies"] = "before paying"
    dies(reopen())
    with pytest.raises(StepInDoubtError, match="may still be running it"):
        WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(steal=True))
    result = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(steal=True, force=True))
    assert (result.status, account) == ("completed", [100])


class Opaque:
    """Two of these cannot be compared."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.lock = threading.Lock()


def load() -> Opaque:
    return Opaque(world["rows"])


def read() -> int:
    log.append("read")
    return int(world["rows"])


def count(opaque: Opaque) -> int:
    log.append("count")
    return opaque.rows * 2


def stop() -> None:
    raise RuntimeError("stop")


@workflow
def opaque() -> Generator[Any, Any, int]:
    rows = yield step("read").python(read).version(world["version"]).checkpoint()
    found = yield step("count").python(count, Opaque(rows)).checkpoint()
    if world.get("stops"):
        yield step("stop").python(stop)
    return int(found)


def test_what_cannot_be_compared_is_not_reused_behind_a_step_that_runs_again(reopen: Callable[[], Any]) -> None:
    world.update(rows=5, version="1", stops=True)
    WorkflowEngine(reopen()).run_sync(opaque, workflow_id="run")
    world.update(rows=10, version="2", stops=False)
    plan = in_sync(WorkflowEngine(reopen())).plan(opaque, workflow_id="run", options=RunOptions(reuse="inputs"))
    assert [str(each.decision) for each in plan.steps][:2] == ["rerun", "rerun"]
    result = WorkflowEngine(reopen()).resume_sync(opaque, workflow_id="run", options=RunOptions(reuse="inputs"))
    assert result.output == 20


@register_predicate
def cancels() -> bool:
    task: asyncio.Task[Any] = world["task"]
    task.get_loop().call_soon_threadsafe(task.cancel)
    return True


@workflow
def cancelled() -> Generator[Any, Any, None]:
    yield step("work").python(read).evidence(predicate(cancels))
    yield step("next").python(read)


async def test_a_cancel_that_comes_while_the_claims_of_a_step_are_checked_does_not_lose_the_step(
    reopen: Callable[[], Any],
) -> None:
    store = reopen()
    world["rows"] = 1
    world["task"] = asyncio.ensure_future(WorkflowEngine(store).run(cancelled, workflow_id="run"))
    with pytest.raises(asyncio.CancelledError):
        await world["task"]
    latest = await store.load_latest("run")
    assert [result.path for result in latest.step_results] == ["work"]
    assert log == ["read"]


def test_a_plan_that_stops_at_an_edited_step_that_was_done_says_that_it_would_not_be_done_again(
    reopen: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    edited = PerFunction(lambda function: attrs.evolve(call._describe_function(function), fingerprint="2:edited"))
    monkeypatch.setattr(call, "_INFO", edited)
    plan = in_sync(WorkflowEngine(reopen())).plan(shop, workflow_id="run", options=RunOptions(on_code_change="fail"))
    paid = plan.step("pay")
    again = in_sync(WorkflowEngine(reopen())).plan(shop, workflow_id="run", options=RunOptions(on_code_change="rerun"))
    assert plan.stops
    assert (str(paid.decision), paid.is_stale) == ("reuse", True) == (str(again.step("pay").decision), True)
