"""A step that must not be done twice: what is done about it when nobody saw it end is decided by its evidence alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.dsl import Step, Workflow
from flowckpt.engine.values.options import StepCountTrigger
from flowckpt.errors import (
    EvidenceNotVerifiedError,
    FencedError,
    StaleStepError,
    StepDefinitionError,
    StepFailedError,
    StepInDoubtError,
    StepTimeoutError,
)
from flowckpt.evidence import EvidencePack, artifact_exists, file_sha256, predicate
from tests.forked import Started
from tests.late import Late

log: list[str] = []
paid: list[int] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.clear()
    paid.clear()
    world.clear()
    monkeypatch.chdir(tmp_path)


def note(value: Any) -> Any:
    log.append(str(value))
    if value == "model" and "stops" in world:
        raise world["stops"]
    return value


def pay(amount: int) -> str:
    log.append(f"pay {amount}")
    if "refused" in world:
        raise OSError("refused")
    paid.append(amount)
    if "opens" in world:
        world.pop("down", None)
    if "late" in world:
        raise OSError("no answer")
    return f"receipt {amount}"


def is_paid(amount: int) -> bool:
    if "down" in world:
        raise OSError("the bank is closed")
    return amount in paid


def rebuilt(amount: int) -> str:
    log.append(f"adopt {amount}")
    if "cannot adopt" in world:
        raise OSError("no receipt yet")
    return f"receipt {amount}"


BLIND = step("pay").python(pay, 5).at_most_once()
SEEING = BLIND.evidence(predicate(is_paid, 5))


def one(made: Step[Any]) -> Workflow[Any, Any]:
    @workflow("one")
    def flow() -> Generator[Any, Any, Any]:
        return (yield made)

    return flow


def dies(store: Any, made: Workflow[Any, Any], at: int, *, is_after: bool, is_resumed: bool = False) -> None:
    """Die at a save; the effect of a step whose own save it was has happened."""
    engine = WorkflowEngine(CrashingStore(store, at, is_after=is_after))
    with pytest.raises(SimulatedCrash):
        engine.resume_sync(made, workflow_id="run") if is_resumed else engine.run_sync(made, workflow_id="run")


def dies_at_the_mark(store: Any, made: Workflow[Any, Any]) -> None:
    dies(store, made, 2, is_after=True)
    assert paid == []


def dies_after_the_effect(store: Any, made: Workflow[Any, Any]) -> None:
    dies(store, made, 3, is_after=False)
    assert paid == [5]


def resume(store: Any, made: Workflow[Any, Any], **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(made, workflow_id="run", options=RunOptions(**options))


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


def is_in_doubt(store: Any, made: Workflow[Any, Any], **options: Any) -> StepInDoubtError:
    try:
        result = resume(store, made, **options)
    except StepInDoubtError as error:
        return error
    assert isinstance(result.error, StepInDoubtError), result
    return result.error


# --- processes that die in the step -----------------------------------------------------------------------------------

PROGRAM = """
import hashlib, json, os, sys
from pathlib import Path
from flowckpt import FileCheckpointStore, RunOptions, WorkflowEngine, step, workflow
from flowckpt.errors import StepInDoubtError
from flowckpt.evidence import file_sha256

DIGEST = hashlib.sha256(b"5").hexdigest()

def add(name):
    with open(name, "a") as file:
        file.write("5")

def pay(amount, dies):
    add("calls")
    if dies == "before" and not Path("again").exists():
        os._exit(9)
    Path("paid").write_text(str(amount))
    if dies == "half way" and not Path("again").exists():
        Path("paid").write_text("")
        os._exit(9)
    if dies == "after" and not Path("again").exists():
        os._exit(9)
    return {"receipt": amount}

def rebuilt(amount, dies):
    add("adopted")
    return {"receipt": amount}

@workflow("shop")
def shop(dies: str, kind: str):
    yield step("one").python(int, 1).checkpoint()
    made = step("pay").python(pay, 5, dies).at_most_once()
    if kind != "blind":
        made = made.evidence(file_sha256("paid", DIGEST))
    if kind == "adopting":
        made = made.adopt(rebuilt)
    receipt = yield made
    yield step("two").python(int, 2).checkpoint()
    return receipt

if __name__ == "__main__":
    engine = WorkflowEngine(FileCheckpointStore("store"))
    if sys.argv[1] == "run":
        engine.run_sync(shop, workflow_id="run", dies=sys.argv[2], kind=sys.argv[3])
    try:
        events = []
        session = engine.prepare_resume(shop, "run", RunOptions(**json.loads(sys.argv[2])), {})
        result = engine.drive_sync(session, on_event=lambda event: events.append([event.kind, getattr(event, "path", "")]))
    except StepInDoubtError as error:
        print(json.dumps({"doubt": error.path}))
    else:
        told = [path for kind, path in events if kind == "StepStarted"]
        print(json.dumps({"status": result.status, "output": result.output, "started": told,
                          "adopted": [path for kind, path in events if kind == "StepAdopted"]}))
"""

RECEIPT = {"receipt": 5}
DEATHS = [  # where it dies, how it is written, options, whether it is called again, what it comes to
    ("after", "seeing", {}, "adopts", None),
    ("after", "adopting", {}, "adopts", RECEIPT),
    ("before", "seeing", {}, "runs", RECEIPT),
    ("before", "adopting", {}, "runs", RECEIPT),
    ("half way", "seeing", {}, "runs", RECEIPT),
    ("before", "blind", {}, "asks", None),
    ("after", "blind", {}, "asks", None),
    ("after", "blind", {"force": True}, "runs", RECEIPT),
    ("after", "seeing", {"force": True}, "adopts", None),
    ("after", "seeing", {"from_step": "pay"}, "adopts", None),
    ("before", "seeing", {"from_step": "pay"}, "runs", RECEIPT),
    ("after", "blind", {"from_step": "pay"}, "asks", None),
]


@pytest.mark.parametrize(("death", "kind", "options", "does", "output"), DEATHS)
def test_a_process_that_died_in_the_step_leaves_a_doubt_that_its_evidence_settles(
    death: str, kind: str, options: dict[str, Any], does: str, output: Any, tmp_path: Path
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(PROGRAM)

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        pipe = subprocess.PIPE
        process = Started([script, *arguments], stdout=pipe, stderr=pipe, text=True)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    died = python("run", death, kind)
    assert (died.returncode, died.stdout) == (9, ""), died.stderr
    Path("again").touch()
    answered = python("resume", json.dumps(options))
    assert answered.returncode == 0, answered.stderr
    answer = json.loads(answered.stdout)
    calls = len(Path("calls").read_text())
    if does == "asks":
        assert (answer, calls) == ({"doubt": "pay"}, 1)
        return
    runs = does == "runs"
    assert answer == {
        "status": "completed",
        "output": output,
        "started": ["pay", "two"] if runs else ["two"],
        "adopted": [] if runs else ["pay"],
    }
    assert calls == (2 if runs else 1)
    assert Path("adopted").exists() is (does == "adopts" and kind == "adopting")
    once_more = json.loads(python("resume", "{}").stdout)
    assert (once_more["status"], once_more["output"], once_more["started"]) == ("completed", output, [])


# --- settlements ------------------------------------------------------------------------------------------------------

SETTLED = [  # how it dies, how the world is then, options, what is called, or None where nobody knows
    (dies_after_the_effect, "", {}, []),
    (dies_at_the_mark, "", {}, ["pay 5"]),
    (dies_after_the_effect, "down", {}, None),
    (dies_at_the_mark, "down", {}, None),
    (dies_after_the_effect, "down", {"force": True}, ["pay 5"]),
    (dies_after_the_effect, "", {"force": True}, []),
    (dies_after_the_effect, "down", {"on_stale": "reuse"}, None),
    (dies_after_the_effect, "down", {"on_stale": "rerun", "on_code_change": "rerun"}, None),
    (dies_after_the_effect, "down", {"reuse": "inputs"}, None),
    (dies_after_the_effect, "", {"reuse": "inputs"}, []),
]


@pytest.mark.parametrize(("die", "state", "options", "calls"), SETTLED)
def test_a_doubt_is_settled_by_evidence_and_by_nobody_but_who_forces_it(
    die: Any, state: str, options: dict[str, Any], calls: list[str] | None, reopen: Callable[[], Any]
) -> None:
    flow = one(SEEING)
    die(reopen(), flow)
    assert latest(reopen()).in_flight == ("pay",)
    log.clear()
    world[state] = True
    plan = in_sync(WorkflowEngine(reopen())).plan(flow, workflow_id="run", options=RunOptions(**options))
    assert [str(each.decision) for each in plan.steps] == ["in_doubt"]
    assert bool(plan.stops) is (calls is None)
    if calls is None:
        error = is_in_doubt(reopen(), flow, **options)
        assert (error.path, log) == ("pay", [])
        assert "the bank is closed" in error.detail
        return
    world["opens"] = True
    result = resume(reopen(), flow, **options)
    assert (result.status, log) == ("completed", calls)
    saved = latest(reopen())
    assert saved.in_flight == ()
    assert saved.step_results[0].marks == (("at_most_once",) if calls else ("at_most_once", "adopted"))
    assert (result.steps.executed, result.steps.restored) == ((1, 0) if calls else (0, 1))


HALF = [  # the claim, what is there, what is called, or None where nobody knows
    (lambda: file_sha256("out"), "whole", None),
    (lambda: file_sha256("out"), "half", None),
    (lambda: artifact_exists("out"), "half", None),
    (lambda: file_sha256("out", hashlib.sha256(b"whole").hexdigest()), "whole", []),
    (lambda: file_sha256("out", hashlib.sha256(b"whole").hexdigest()), "half", ["write"]),
]


@pytest.mark.parametrize(("claim", "there", "calls"), HALF)
def test_what_is_there_proves_nothing_unless_the_program_said_before_what_it_would_be(
    claim: Callable[[], Any], there: str, calls: list[str] | None, reopen: Callable[[], Any]
) -> None:
    def writes() -> None:
        log.append("write")
        Path("out").write_text("whole")

    flow = one(step("a").python(writes).evidence(claim()).at_most_once())
    dies(reopen(), flow, 2, is_after=True)
    Path("out").write_text(there)
    if calls is None:
        assert is_in_doubt(reopen(), flow).path == "a"
    else:
        assert resume(reopen(), flow).status == "completed"
    assert log == (calls or [])


# --- a doubt is never forgotten ---------------------------------------------------------------------------------------


@workflow("later")
def later() -> Generator[Any, Any, Any]:
    if "broken" in world:
        raise RuntimeError("the configuration is missing")
    yield step("model").python(note, "model").ephemeral()
    if "leaves" in world:
        sys.exit(3)
    yield step("a").python(write_a).evidence(file_sha256("a")).checkpoint()
    yield step("b").python(note, "b").checkpoint()
    return (yield BLIND)


def write_a() -> int:
    log.append("a")
    Path("a").write_text("a")
    if "fails" in world:
        raise OSError("no")
    return 1


def _nothing(store: Any) -> None:
    is_in_doubt(store, later)


def _upstream_reruns(store: Any) -> None:
    Path("a").unlink()
    is_in_doubt(store, later)


def _upstream_reruns_and_dies(at: int) -> Callable[[Any], None]:
    def crash(store: Any) -> None:
        Path("a").unlink()
        dies(store, later, at, is_after=True, is_resumed=True)

    return crash


def _upstream_fails(store: Any) -> None:
    Path("a").unlink()
    world["fails"] = True
    assert resume(store, later).error.failed_with(OSError)


def _ctrl_c_before_it_is_come_to(store: Any) -> None:
    world["stops"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        resume(store, later)


def _the_program_leaves_before_it(store: Any) -> None:
    world["leaves"] = True
    with pytest.raises(SystemExit):
        resume(store, later)


def _the_generator_raises_under_force(store: Any) -> None:
    world["broken"] = True
    assert resume(store, later, force=True).status == "failed"


def _an_earlier_step_is_asked_for_again(store: Any) -> None:
    is_in_doubt(store, later, from_step="a")


def _triggered_saves(store: Any) -> None:
    Path("a").unlink()
    engine = WorkflowEngine(store, trigger=StepCountTrigger(1))
    assert isinstance(engine.resume_sync(later, workflow_id="run").error, StepInDoubtError)


SECOND = {
    "it is asked about again": _nothing,
    "what comes before it is run again": _upstream_reruns,
    "a rerun before it dies at its start": _upstream_reruns_and_dies(1),
    "a rerun before it dies at a step": _upstream_reruns_and_dies(2),
    "a rerun before it dies at the last step": _upstream_reruns_and_dies(3),
    "a step before it fails": _upstream_fails,
    "a signal comes before it": _ctrl_c_before_it_is_come_to,
    "the program leaves before it": _the_program_leaves_before_it,
    "the generator raises under force": _the_generator_raises_under_force,
    "an earlier step is asked for again": _an_earlier_step_is_asked_for_again,
    "checkpoints are triggered": _triggered_saves,
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_a_doubt_outlives_an_attempt_in_which(second: Callable[[Any], None], reopen: Callable[[], Any]) -> None:
    dies(reopen(), later, 4, is_after=True)
    assert latest(reopen()).in_flight == ("pay",)
    second(reopen())
    assert "pay" in latest(reopen()).in_flight
    world.clear()
    for _ in range(2):
        assert is_in_doubt(reopen(), later).path == "pay"
        assert "pay" in latest(reopen()).in_flight
    assert paid == []
    assert resume(reopen(), later, force=True).output == "receipt 5"
    assert (paid, latest(reopen()).in_flight) == ([5], ())


def test_a_step_that_is_never_recorded_is_no_longer_told_as_unended_once_it_has_ended(
    reopen: Callable[[], Any],
) -> None:
    @workflow("flow")
    def flow() -> Generator[Any, Any, None]:
        yield step("model").python(note, "model").ephemeral()
        yield step("b").python(note, "b").checkpoint()

    world["stops"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        WorkflowEngine(reopen()).run_sync(flow, workflow_id="run")
    assert latest(reopen()).in_flight == ("model",)
    world.clear()
    assert resume(reopen(), flow).status == "completed"
    assert asyncio.run(reopen().load("run", "b")).in_flight == ()


def test_a_step_that_is_left_by_ctrl_c_or_by_a_cancel_is_in_doubt(reopen: Callable[[], Any]) -> None:
    def interrupted() -> None:
        log.append("begun")
        raise KeyboardInterrupt

    flow = one(step("pay").python(interrupted).at_most_once())
    with pytest.raises(KeyboardInterrupt):
        WorkflowEngine(reopen()).run_sync(flow, workflow_id="run")
    assert (latest(reopen()).status, latest(reopen()).in_flight) == ("suspended", ("pay",))
    assert "its end was never recorded" in is_in_doubt(reopen(), flow).detail

    async def cancelled() -> None:
        log.append("begun")
        await asyncio.Event().wait()

    slow = one(step("pay").python(cancelled).at_most_once())
    store = MemoryCheckpointStore()

    async def cancel() -> None:
        task = asyncio.create_task(WorkflowEngine(store).run(slow, workflow_id="run"))
        while len(log) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_in_doubt(store, slow).path == "pay"
    assert log == ["begun", "begun"]


def test_a_failed_step_may_have_been_done_and_its_failure_stays_if_it_was_handled(reopen: Callable[[], Any]) -> None:
    world["late"] = True
    flow = one(BLIND)
    failed: Any = WorkflowEngine(reopen()).run_sync(flow, workflow_id="run").error
    assert failed.failed_with(OSError)
    world.clear()
    for _ in range(3):
        assert is_in_doubt(reopen(), flow).detail.startswith("it failed; ")
    assert paid == [5]
    world["refused"] = True
    assert resume(reopen(), flow, force=True).status == "failed"
    assert is_in_doubt(reopen(), flow).detail.startswith("it failed; ")

    @workflow("handles")
    def handles() -> Generator[Any, Any, str]:
        try:
            yield BLIND
        except StepFailedError as error:
            yield step("instead").python(note, "instead").checkpoint()
            return error.error_message
        return ""

    log.clear()
    WorkflowEngine(reopen()).run_sync(handles, workflow_id="handled")
    again = WorkflowEngine(reopen()).resume_sync(handles, workflow_id="handled")
    assert (again.output, log) == ("refused", ["pay 5", "instead"])


def test_who_lost_the_run_does_not_do_what_must_not_be_done_twice(reopen: Callable[[], Any]) -> None:
    async def both() -> None:
        reached, goes_on = asyncio.Event(), asyncio.Event()

        async def paused() -> int:
            if reached.is_set():
                return 1
            reached.set()
            await goes_on.wait()
            return 1

        @workflow("flow")
        def flow() -> Generator[Any, Any, Any]:
            yield step("paused").python(paused).checkpoint()
            return (yield SEEING)

        first = reopen()
        old = asyncio.create_task(WorkflowEngine(first).run(flow, workflow_id="run"))
        await reached.wait()
        second = first if isinstance(first, MemoryCheckpointStore) else FileCheckpointStore("store")
        options = RunOptions(steal=True)
        assert (await WorkflowEngine(second).resume_run(flow, workflow_id="run", options=options)).status == "completed"
        goes_on.set()
        with pytest.raises(FencedError):
            await old

    asyncio.run(both())
    assert paid == [5]


STOLEN: list[tuple[str, list[str], type[StepInDoubtError] | None]] = [
    ("", [], None),
    ("down", [], StepInDoubtError),
    ("unpaid", [], StepInDoubtError),
]


@pytest.mark.parametrize(("state", "calls", "error"), STOLEN)
def test_of_a_run_that_was_stolen_nothing_is_known_to_be_undone(
    state: str, calls: list[str], error: type[StepInDoubtError] | None, reopen: Callable[[], Any]
) -> None:
    flow = one(SEEING)
    dies_at_the_mark(reopen(), flow)
    if state != "unpaid":
        paid.append(5)
    world[state] = True
    if error is None:
        assert resume(reopen(), flow, steal=True).status == "completed"
    else:
        with pytest.raises(error, match="may still be running it"):
            resume(reopen(), flow, steal=True)
    assert log == calls


# --- done, and dropped with what came before it -----------------------------------------------------------------------


@workflow("chain")
def chain(amount: int = 5) -> Generator[Any, Any, Any]:
    yield step("a").python(write_a).evidence(file_sha256("a")).checkpoint()
    now = world.get("amount", amount)
    made = step("pay").python(pay, now).at_most_once()
    if "blind" not in world:
        claim = predicate(is_paid, now)
        made = made.evidence(claim.transient() if "transient" in world else claim)
    if "tag" in world:
        made = made.version(world["tag"])
    return (yield made)


DROPPED = [  # the world at the first run, then; what is called then, or None where nobody knows
    ({}, {}, ["a"]),
    ({}, {"unpaid": True}, ["a", "pay 5"]),
    ({}, {"amount": 6}, ["a", "pay 6"]),
    ({}, {"tag": "b"}, ["a", "pay 5"]),
    ({}, {"down": True}, None),
    ({"blind": True}, {"blind": True}, None),
    ({"transient": True}, {"transient": True}, None),
    ({"blind": True}, {"blind": True, "amount": 6}, ["a", "pay 6"]),
]


@pytest.mark.parametrize(("first", "then", "calls"), DROPPED)
def test_what_was_done_is_not_done_again_because_something_before_it_is(
    first: dict[str, Any], then: dict[str, Any], calls: list[str] | None, reopen: Callable[[], Any]
) -> None:
    world.update(first)
    assert WorkflowEngine(reopen()).run_sync(chain, workflow_id="run").status == "completed"
    world.clear()
    world.update(then)
    if "unpaid" in world:
        paid.clear()
    Path("a").unlink()
    log.clear()
    plan = in_sync(WorkflowEngine(reopen())).plan(chain, workflow_id="run", options=RunOptions(on_stale="rerun"))
    assert bool(plan.stops) is (calls is None)
    for at in (1, 2) if calls == ["a"] else ():  # also when the rerun dies on its way
        with pytest.raises(SimulatedCrash):
            engine = WorkflowEngine(CrashingStore(reopen(), at, is_after=True))
            engine.resume_sync(chain, workflow_id="run", options=RunOptions(on_stale="rerun"))
        Path("a").unlink(missing_ok=True)
        log.clear()
    if calls is None:
        assert is_in_doubt(reopen(), chain, on_stale="rerun").detail.startswith("it was done, ")
        assert (is_in_doubt(reopen(), chain).path, paid) == ("pay", [5])
        return
    result = resume(reopen(), chain, on_stale="rerun")
    assert (result.status, result.output) == ("completed", f"receipt {world.get('amount', 5)}")
    assert log == calls


# --- tries ------------------------------------------------------------------------------------------------------------

TRIES = [  # the world, what is called, the status
    ({"refused": True}, ["pay 5", "pay 5", "pay 5"], "failed"),
    ({"late": True}, ["pay 5"], "completed"),
    ({"refused": True, "down": True}, ["pay 5"], "failed"),
    ({"late": True, "down": True}, ["pay 5"], "failed"),
]


@pytest.mark.parametrize(("state", "calls", "status"), TRIES)
def test_a_try_is_followed_by_another_only_where_the_first_is_known_not_to_have_done_it(
    state: dict[str, Any], calls: list[str], status: str
) -> None:
    world.update(state)
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(one(SEEING.retry(3)), workflow_id="run")
    assert (log, result.status) == (calls, status)
    assert len(paid) <= 1
    assert (result.steps.executed, result.steps.restored) == ((0, 1) if status == "completed" else (1, 0))


def test_without_evidence_there_is_one_try_and_to_force_a_resume_allows_one_more(reopen: Callable[[], Any]) -> None:
    world["refused"] = True
    flow = one(BLIND.retry(3))
    for forced in (False, True, True):
        log.clear()
        result: Any = (
            resume(reopen(), flow, force=True) if forced else WorkflowEngine(reopen()).run_sync(flow, workflow_id="run")
        )
        assert (log, result.error.tries) == (["pay 5"], 1)
        error = latest(reopen()).error
        assert "It was not tried again: step 'pay' must run at most once" in error.traceback


def test_a_failed_try_with_evidence_that_denies_it_is_tried_again_within_a_resume(reopen: Callable[[], Any]) -> None:
    flow = one(SEEING.retry(2))
    dies_at_the_mark(reopen(), flow)

    def refuses_once(amount: int) -> str:
        log.append(f"try {amount}")
        if len(log) == 1:
            raise OSError("busy")
        paid.append(amount)
        return "paid"

    made = step("pay").python(refuses_once, 5).at_most_once().evidence(predicate(is_paid, 5)).retry(2)
    assert resume(reopen(), one(made)).output == "paid"
    assert (log, paid) == (["try 5", "try 5"], [5])


def test_a_function_that_ran_out_of_time_may_yet_do_it_and_is_not_called_again(late: Late) -> None:
    gate, left = threading.Event(), threading.Event()

    def slow(amount: int) -> None:
        log.append("called")
        try:
            late.advance()
            gate.wait(120)
        finally:  # what a request that was sent does at its other end, whoever waits for it
            paid.append(amount)
            left.set()

    store = MemoryCheckpointStore()
    made = step("pay").python(slow, 5).evidence(predicate(is_paid, 5)).at_most_once().timeout(600).retry(3)
    result: Any = WorkflowEngine(store).run_sync(one(made), workflow_id="run")
    gate.set()
    assert left.wait(120)
    assert result.error.failed_with(StepTimeoutError)
    assert (log, paid, result.error.tries) == (["called"], [5], 1)
    assert "its function still runs after the timeout" in latest(store).error.traceback
    assert resume(store, one(made)).status == "completed"
    assert (log, paid) == (["called"], [5])


def test_an_async_function_that_ran_out_of_time_is_stopped_and_asked_about() -> None:
    async def slow(amount: int) -> None:
        log.append("called")
        if "quick" in world:
            paid.append(amount)
            return
        world["quick"] = True
        await asyncio.Event().wait()

    made = step("pay").python(slow, 5).evidence(predicate(is_paid, 5)).at_most_once().timeout(0.02).retry(3)
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(one(made))
    assert (result.status, log, paid) == ("completed", ["called", "called"], [5])


# --- adopting ---------------------------------------------------------------------------------------------------------


def claims_receipt(receipt: Any) -> Any:
    world["claimed of"] = receipt
    return predicate(is_paid, int(receipt.split()[1]))


ADOPTIONS = {  # how the step is written, its output, the claims that are checked then
    "nothing to rebuild it": (SEEING, None, 1),
    "a function that rebuilds it": (SEEING.adopt(rebuilt), "receipt 5", 1),
    "a claim of a result that nobody has": (BLIND.evidence(predicate(is_paid, 5), claims_receipt), None, 1),
    "a claim of the rebuilt result": (
        BLIND.evidence(predicate(is_paid, 5), claims_receipt).adopt(rebuilt),
        "receipt 5",
        2,
    ),
    "a pack": (BLIND.evidence(EvidencePack([predicate(is_paid, 5)])).adopt(rebuilt), "receipt 5", 1),
}


@pytest.mark.parametrize(("made", "output", "checked"), ADOPTIONS.values(), ids=ADOPTIONS)
def test_what_is_proved_done_is_adopted_with(
    made: Step[Any], output: Any, checked: int, reopen: Callable[[], Any]
) -> None:
    dies_after_the_effect(reopen(), one(made))
    log.clear()
    world.clear()
    result = resume(reopen(), one(made))
    assert (result.status, result.output, paid) == ("completed", output, [5])
    assert log == ([] if output is None else ["adopt 5"])
    assert world.get("claimed of") == (output if checked == 2 else None)
    recorded = latest(reopen()).step_results[0]
    assert len(recorded.evidence["verdicts"]) == checked
    for _ in range(2):
        again = resume(reopen(), one(made))
        assert (again.output, again.steps.restored) == (output, 1)
    assert log == ([] if output is None else ["adopt 5"])


def typed(amount: int) -> int:
    paid.append(amount)
    return amount


def test_a_result_that_nobody_can_rebuild_is_none_whatever_the_function_returns(reopen: Callable[[], Any]) -> None:
    flow = one(step("pay").python(typed, 5).evidence(predicate(is_paid, 5)).at_most_once())
    dies_after_the_effect(reopen(), flow)
    assert [resume(reopen(), flow).output for _ in range(3)] == [None, None, None]


def test_a_claim_of_the_rebuilt_result_that_does_not_hold_fails_the_step(reopen: Callable[[], Any]) -> None:
    made = BLIND.evidence(predicate(is_paid, 5), lambda receipt: predicate(is_paid, 7)).adopt(rebuilt)
    dies(reopen(), one(made), 2, is_after=True)
    paid.append(5)
    result = resume(reopen(), one(made))
    assert result.error.failed_with(EvidenceNotVerifiedError)
    assert (log, paid) == (["adopt 5"], [5])


def test_adopting_may_fail_and_is_tried_again_without_doing_it_again(reopen: Callable[[], Any]) -> None:
    flow = one(SEEING.adopt(rebuilt))
    dies_after_the_effect(reopen(), flow)
    world["cannot adopt"] = True
    assert resume(reopen(), flow).error.failed_with(OSError)
    world.clear()
    assert resume(reopen(), flow).output == "receipt 5"
    assert (log, paid) == (["pay 5", "adopt 5", "adopt 5"], [5])


def test_where_claims_must_be_proved_only_in_part_those_of_an_unknown_result_leave_all_others_to_hold(
    reopen: Callable[[], Any],
) -> None:
    made = BLIND.evidence(predicate(is_paid, 5), predicate(is_paid, 7), claims_receipt, min_verified=1)
    dies_after_the_effect(reopen(), one(made))
    log.clear()
    assert resume(reopen(), one(made)).status == "completed"
    assert log == ["pay 5"], "one stated claim fails: that it was done is not proved"


def test_to_adopt_makes_sense_only_where_there_can_be_a_doubt() -> None:
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(one(step("pay").python(pay, 5).adopt(rebuilt)))
    assert isinstance(result.error, StepDefinitionError)
    assert (result.error.step, log) == ("pay", [])


@pytest.mark.parametrize(
    ("decided", "output", "paid"), [({"done": {"pay": 7}}, 7, [1]), ({"not_done": ["pay"]}, 2, [1, 2])]
)
def test_a_decision_counts_for_a_step_that_was_done_with_other_arguments(
    reopen: Callable[[], Any], decided: dict[str, Any], output: int, paid: list[int]
) -> None:
    amount, calls = [1], list[int]()

    def pay(number: int) -> int:
        calls.append(number)
        return number

    def close() -> None:
        if amount == [1]:
            raise ValueError("not today")

    @workflow("paying")
    def paying() -> Generator[Any, Any, int]:
        number = yield step("amount").python(amount.copy).version(str(amount[0])).checkpoint()
        paid = yield step("pay").python(pay, number[0]).at_most_once().checkpoint()
        yield step("close").python(close).checkpoint()
        return int(paid)

    WorkflowEngine(reopen()).run_sync(paying, workflow_id="run")
    amount[0] = 2
    for _ in range(2):
        with pytest.raises(StaleStepError):
            WorkflowEngine(reopen()).resume_sync(paying, workflow_id="run").unwrap()
    options = RunOptions(**decided)
    plan = in_sync(WorkflowEngine(reopen())).plan(paying, workflow_id="run", options=options)
    assert not plan.stops
    assert WorkflowEngine(reopen()).resume_sync(paying, workflow_id="run", options=options).unwrap() == output
    assert calls == paid
